// `trireme train --check`, and what is refused before anything is started: the same things, in one
// sentence, said once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "support/small_disk.h"
#include "support/training.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult checked(const std::string& config, std::vector<std::string> overrides) {
  std::vector<std::string> argv = {kTrireme, "train", config, "--check"};
  argv.insert(argv.end(), overrides.begin(), overrides.end());
  return run_patiently(std::move(argv));
}

TEST(Check, NeedsNoData) {
  const auto result = checked(TRIREME_SOURCE_DIR "/configs/gpt2-124m.toml", {});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("gpt: 124475904 parameters"), HasSubstr("mesh of 1 rank:"),
                    HasSubstr("data.path: data/train.bin does not exist yet")));
  const auto dry =
      run_patiently({kTrireme, "train", TRIREME_SOURCE_DIR "/configs/gpt2-124m.toml", "--dry-run"});
  EXPECT_EQ(dry.out, result.out);
}

/// What `--check` says of a file in configs/.
std::string model_of(const std::string& name) {
  const std::pair<const char*, const char*> lines[] = {
      {"bench.toml", "gpt: 5289472 parameters"},
      {"finetune-lora.toml", "of adapters are trained)"},
      {"gpt-small.toml", "gpt: 366432 parameters"},
      {"gpt2-124m.toml", "gpt: 124475904 parameters"},
      {"llama-60m.toml", "llama: 58073600 parameters"},
      {"mlp.toml", "mlp: "},
      {"mnist.toml", "resnet: "},
      {"moe-small.toml", "moe-gpt: "},
      {"resnet18-cifar.toml", "resnet: 11173962 parameters"}};
  for (const auto& [file, line] : lines)
    if (name == file) return line;
  ADD_FAILURE() << "configs/" << name << " is not known here: say what --check prints of it";
  return "";
}

TEST(Check, OfEveryConfigurationOfTheTreeSaysWhatItNeeds) {
  const Scratch folder;
  // finetune-lora starts from a Hugging Face folder: one of the same kind of model, a small one.
  fs::create_directory(folder / "data");
  ASSERT_EQ(run_patiently(train_arguments(tiny_config(folder), folder / "run",
                                          {"run.steps=0", "mesh.replica=1"}))
                .code,
            0);
  ASSERT_EQ(run_patiently({kTrireme, "ckpt", "export", folder / "run", folder / "data/gpt2"}).code,
            0);
  for (const auto& file : fs::directory_iterator(TRIREME_SOURCE_DIR "/configs")) {
    SCOPED_TRACE(file.path());
    const auto result = run_patiently({"bash", "-c",
                                       "cd " + folder.path() + " && exec " + kTrireme + " train " +
                                           file.path().string() + " --check"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr(model_of(file.path().filename())),
                                  HasSubstr("mesh of "), HasSubstr("together")));
  }
}

TEST(Check, LooksAtFilesThatAreThere) {
  const Scratch folder;
  put_bytes(folder / "odd.bin", "abc");
  const auto result = checked(tiny_config(folder), {"data.path=" + folder / "odd.bin"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("odd.bin"));
}

TEST(Check, TakesTheWorldOfALauncher) {
  const Scratch folder;
  const auto result = run_patiently({kTrireme, "run", "-n", "4", kTrireme, "train",
                                     tiny_config(folder), "--check", "mesh.replica=0"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0] mesh of 4 ranks: pipe 1 x replica 4"));
  EXPECT_THAT(result.out, Not(HasSubstr("[1]"))) << "one rank speaks";
  const auto other = run_patiently(
      {kTrireme, "run", "-n", "3", kTrireme, "train", tiny_config(folder), "--check"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err,
              HasSubstr("the mesh needs 2 ranks, but the launcher started 3: use -n 2 or "
                        "mesh.replica=3"));
}

TEST(Check, OfAbsurdSizesTakesNoMemory) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto limited = [&](const std::string& overrides) {
    return run_patiently(
        {"bash", "-c",
         "ulimit -v 4000000; exec " + kTrireme + " train " + config + " --check " + overrides});
  };
  const auto large = limited("model.hidden=1000000 model.vocab=100000000 model.seq=100000");
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(large.out, HasSubstr("together"));
  const std::pair<const char*, const char*> refused[] = {
      {"model.layers=2000000000", "model.layers"},
      {"model.hidden=500000000", "at most 1e15 can be counted"},
      {"batch.micro=2000000000 batch.global=2000000000 model.seq=2000000", "activations"},
      {"mesh.replica=2000000000", "more than 99999 ranks"}};
  for (const auto& [overrides, said] : refused) {
    const auto result = limited(overrides);
    EXPECT_EQ(result.code, 2) << overrides << result.out;
    EXPECT_THAT(result.err, HasSubstr(said));
  }
  EXPECT_THAT(limited("mesh.replica=64").out, HasSubstr("54 ranks have nothing to do"));
}

TEST(Check, RefusesMoreRanksThanTheLauncherStarts) {
  const Scratch folder;
  const auto result = checked(tiny_config(folder), {"mesh.replica=5000"});
  EXPECT_EQ(result.code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("5000 ranks per host: must be 1 to 4096"));
}

TEST(LittleMemory, IsOneSentence) {
  const Scratch folder;
  std::string line = "exec ";
  for (const std::string& word : train_arguments(tiny_config(folder), folder / "run"))
    line += word + " ";
  const auto loading = run_patiently({"bash", "-c", "ulimit -v 380000; " + line});
  EXPECT_EQ(loading.code, 2);
  EXPECT_THAT(loading.err, AllOf(HasSubstr("ulimit -v allows"), HasSubstr("libtorch")));
  const auto large = run_patiently({"bash", "-c", line + " model.hidden=1000000 mesh.replica=1"});
  EXPECT_EQ(large.code, 1);
  EXPECT_THAT(large.err, AllOf(HasSubstr("no memory for a tensor of "), HasSubstr("--check")));
}

struct EarlyRefusal {
  std::vector<std::string> overrides;
  std::string said;
};

TEST(Check, RefusesWhatTrainingRefusesAndBothSayItOnce) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const EarlyRefusal refusals[] = {
      {{"run.device=cuda"}, "run.device = \"cuda\""},
      {{"mesh.tensor=5"},
       "mesh.tensor = 5 does not fit model.heads = 2: use at most 2, or a multiple of it"},
      {{"mesh.pipe=2", "pipeline.schedule=1f2b"}, "pipeline.schedule = \"1f2b\""},
      {{"data.kind=markov", "data.path=x"}, "data.path = \"x\" has no effect"},
      {{"model.kind=moe-gpt", "mesh.expert=3"},
       "model.experts = 8 cannot be dealt evenly to mesh.expert = 3: use a divisor"},
      {{"model.kind=moe-gpt", "mesh.replica=1", "mesh.expert=2"},
       "Mesh: expert 2 does not divide replica 1 x shard 1 x context 1 = 1"}};
  for (const EarlyRefusal& refusal : refusals) {
    SCOPED_TRACE(refusal.overrides.back());
    for (const bool check : {true, false}) {
      auto overrides = refusal.overrides;
      if (check) overrides.push_back("--check");
      const auto result = run_command(train_arguments(config, folder / "run", overrides),
                                      {.environment = kNoGpus, .deadline = kPatience});
      EXPECT_EQ(result.code, 2) << result.out;
      EXPECT_THAT(result.err, AllOf(StartsWith("trireme train: "), HasSubstr(refusal.said)));
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    }
  }
}

TEST(Refused, RanksThatAreThreadsInSeveralProcesses) {
  const Scratch folder;
  std::vector<std::string> command = {kTrireme, "run", "-n", "2"};
  const auto train = train_arguments(tiny_config(folder), folder / "run", {"comm.backend=local"});
  command.insert(command.end(), train.begin(), train.end());
  const auto result = run_patiently(command);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("threads of one process, but the launcher started 2"));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Refused, AMeshThatDoesNotFitIsNotTriedAgain) {
  const Scratch folder;
  std::vector<std::string> command = {kTrireme, "run", "-n", "4", "--max-restarts", "3"};
  const auto train = train_arguments(tiny_config(folder), folder / "run");
  command.insert(command.end(), train.begin(), train.end());
  const auto result = run_patiently(command);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the mesh needs 2 ranks, but the launcher started 4"),
                                Not(HasSubstr("restart"))));
}

TEST(Refused, AFolderThatCannotBeWritten) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const SmallDisk disk(folder / "disk", "8m");
  if (!disk.available()) GTEST_SKIP() << "only root may mount a disk";
  EXPECT_EQ(run_patiently(train_arguments(config, disk / "run", {"run.steps=4"})).code, 0);
  disk.make_read_only();
  for (const char* run : {"run", "new"}) {
    const auto result = run_patiently(train_arguments(config, disk / run, {"run.steps=8"}));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("the run's folder: cannot"), HasSubstr("Read-only file system")));
  }
}

TEST(Stopped, BeforeTheFirstStepThereIsNothingToSave) {
  const Scratch folder;
  const std::string marker = unique_marker();
  Command run(train_arguments(tiny_config(folder), folder / "run"),
              {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience});
  ASSERT_TRUE(eventually([&] {  // the launcher, its keeper and two ranks
    return processes_with("TRIREME_TEST_MARK", marker).size() >= 4;
  }));
  run.signal(SIGINT);
  const auto result = run.finish();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_EQ(result.err, "") << "it did as it was told";
  EXPECT_FALSE(fs::exists(folder / "run/checkpoints/step-00000000"));
}

TEST(Small, DataIsSaidToBe) {
  const Scratch folder;
  const std::string config = tiny_config(folder), tokens = folder / "tokens.bin";
  ASSERT_EQ(
      run_patiently({kTrireme, "data", "make", tokens, "--tokens", "30", "--vocab", "64"}).code, 0);
  const auto result = run_patiently(
      train_arguments(config, folder / "run", {"data.path=" + tokens, "run.steps=2"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("batches of 1 sample;"));
  EXPECT_THAT(result.err,
              HasSubstr("the data has 1 sample of model.seq = 16, fewer than batch.global = 10"));
}

}  // namespace
}  // namespace trireme::test
