// Runs that are killed, and runs that cannot be: what is left is whole, what goes on gives the same
// numbers to the last bit, and what is wrong is said in a sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/small_disk.h"
#include "support/training.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::vector<std::string> kLong = {"run.steps=200", "checkpoint.every=7", "log.every=1"};

/// What an undisturbed run of kLong says.
const std::vector<std::string>& undisturbed() {
  static const std::vector<std::string> losses = [] {
    const Scratch folder;
    const auto result = run_patiently(train_arguments(tiny_config(folder), folder / "run", kLong));
    EXPECT_EQ(result.code, 0) << result.err;
    return texts_of(folder / "run", "loss");
  }();
  return losses;
}

enum class Victim { Rank, Launcher, Everything };

/// Kills a run once it has reached `step`, and starts it again until it ends.
void kill_and_continue(Victim victim, int step) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const std::string marker = unique_marker();
  {
    Command run(train_arguments(config, dir, kLong),
                {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience});
    ASSERT_TRUE(run.wait_for("step " + std::to_string(step) + "/200"));
    const auto ranks = ranks_of(marker);
    ASSERT_EQ(ranks.size(), 2u);
    if (victim != Victim::Rank) ::kill(run.pid(), SIGKILL);
    if (victim != Victim::Launcher) ::kill(ranks[step % 2], SIGKILL);
    if (victim == Victim::Everything) ::kill(ranks[(step + 1) % 2], SIGKILL);
    EXPECT_EQ(run.finish().code, 137);
  }
  EXPECT_TRUE(eventually([&] { return processes_with("TRIREME_TEST_MARK", marker).empty(); }));
  const auto again = run_patiently(train_arguments(config, dir, kLong));
  EXPECT_EQ(again.code, 0) << again.out << again.err;
  if (step >= 50) {  // before that the first checkpoint may still have been on its way
    EXPECT_THAT(again.out, HasSubstr("continues from"));
  }
  EXPECT_EQ(texts_of(dir, "loss"), undisturbed());
  const auto checked = run_patiently({kTrireme, "ckpt", "verify", dir});
  EXPECT_EQ(checked.code, 0) << checked.out;
}

TEST(Killed, ARankAtSeveralMomentsAndStartedAgainGivesTheSameBits) {
  for (const int step : {9, 15, 50, 120}) kill_and_continue(Victim::Rank, step);
}

TEST(Killed, TheLauncherAndStartedAgainGivesTheSameBits) {
  kill_and_continue(Victim::Launcher, 21);
}

TEST(Killed, EverythingAndStartedAgainGivesTheSameBits) {
  kill_and_continue(Victim::Everything, 28);
}

TEST(Killed, ARankUnderALauncherThatRestartsGoesOnWithoutAPerson) {
  const Scratch folder;
  const std::string dir = folder / "run", marker = unique_marker();
  std::vector<std::string> command = {kTrireme, "run", "-n", "2", "--max-restarts", "3"};
  const auto train = train_arguments(tiny_config(folder), dir, kLong);
  command.insert(command.end(), train.begin(), train.end());
  Command run(command, {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience});
  for (const char* step : {"step 20/200", "step 90/200"}) {
    ASSERT_TRUE(run.wait_for(step));
    const auto ranks = ranks_of(marker);
    ASSERT_FALSE(ranks.empty());
    ::kill(ranks.back(), SIGKILL);
  }
  const auto result = run.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(texts_of(dir, "loss"), undisturbed());
}

TEST(Stopped, ARankInsideACollectiveHearsTheSecondSignal) {
  const Scratch folder;
  const std::string marker = unique_marker();
  Command run(train_arguments(tiny_config(folder), folder / "run", kLong),
              {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience});
  ASSERT_TRUE(run.wait_for("step 20/200"));
  const auto ranks = ranks_of(marker);
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[0], SIGSTOP);  // the other one now waits for it in a collective
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(ranks[1], SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // two at once would be one
  EXPECT_EQ(ranks_of(marker).size(), 2u) << "the first asks it to save, which it cannot yet";
  ::kill(ranks[1], SIGINT);
  EXPECT_TRUE(eventually([&] { return ranks_of(marker).size() < 2; })) << "it did not hear";
  ::kill(ranks[0], SIGKILL);
  run.finish();
}

TEST(Damaged, TheNewestCheckpointIsNamedAndTheOneBeforeIsUsed) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  ASSERT_EQ(
      run_patiently(train_arguments(config, dir, {"run.steps=8", "optim.schedule=constant"})).code,
      0);
  const std::string part = dir + "/checkpoints/step-00000008/part-00001.safetensors";
  {
    std::fstream file(part, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(part) / 2));
    file.put('\x55');
  }
  EXPECT_EQ(run_patiently({kTrireme, "ckpt", "verify", dir}).code, 3);
  const auto result =
      run_patiently(train_arguments(config, dir, {"run.steps=12", "optim.schedule=constant"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("step-00000008"), HasSubstr("damaged")));
  EXPECT_THAT(result.out, HasSubstr("continues from " + dir + "/checkpoints/step-00000004"));
  EXPECT_EQ(texts_of(dir, "loss").size(), 12u);
}

TEST(Damaged, CheckpointsAreNotCountedAmongThoseThatAreKept) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  ASSERT_EQ(run_patiently(train_arguments(config, dir, {"run.steps=8"})).code, 0);
  const auto damage = [&](const std::string& step) {
    std::fstream file(dir + "/checkpoints/" + step + "/part-00000.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('\x55');
  };
  damage("step-00000008");
  const auto result = run_patiently(
      train_arguments(config, dir, {"run.steps=7", "checkpoint.keep=1", "checkpoint.every=1"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(fs::exists(dir + "/checkpoints/step-00000007/index.json")) << "the one just written";
  EXPECT_TRUE(fs::exists(dir + "/checkpoints/step-00000008.damaged"));
  damage("step-00000007");
  const auto none = run_patiently(train_arguments(config, dir));
  EXPECT_EQ(none.code, 1) << "with nothing whole left it does not start over by itself";
  EXPECT_THAT(none.err, HasSubstr("remove them to start over"));
}

TEST(Damaged, IsNotWhatANewerTriremeWroteNorWhatWasNeverFinished) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  ASSERT_EQ(run_patiently(train_arguments(config, dir, {"run.steps=4"})).code, 0);
  fs::create_directory(dir + "/checkpoints/step-00000006");
  const auto unfinished = run_patiently(train_arguments(config, dir, {"run.steps=8"}));
  EXPECT_EQ(unfinished.code, 0) << unfinished.err;
  EXPECT_THAT(unfinished.err, AllOf(HasSubstr("step-00000006"), HasSubstr("never finished")));
  EXPECT_THAT(unfinished.out, HasSubstr("continues from " + dir + "/checkpoints/step-00000004"));
  const std::string index = dir + "/checkpoints/step-00000008/index.json";
  std::string text = bytes_of(index);
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 7");
  put_bytes(index, text);
  const auto newer = run_patiently(train_arguments(config, dir));
  EXPECT_EQ(newer.code, 2);
  EXPECT_THAT(newer.err, AllOf(HasSubstr(index), HasSubstr("newer Trireme")));
  EXPECT_TRUE(fs::exists(index)) << "it stays where it is";
  EXPECT_EQ(run_patiently({kTrireme, "ckpt", "verify", dir}).code, 2);
}

TEST(AnotherRun, AtTheSameTimeInTheSameFolderIsRefused) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  Command first(train_arguments(config, dir, {"run.steps=100000", "log.every=1"}),
                {.environment = {}, .input = "", .deadline = kPatience});
  ASSERT_TRUE(first.wait_for("step 5/"));
  const auto second = run_patiently(train_arguments(config, dir, {"run.steps=100000"}));
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, HasSubstr("in use by another run"));
  first.signal(SIGINT);
  EXPECT_EQ(first.finish().code, 0);
}

TEST(AnotherRun, InTheSameFolderIsRefusedWithTheFirstDifference) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  ASSERT_EQ(run_patiently(train_arguments(config, dir, {"run.steps=4"})).code, 0);
  const auto result = run_patiently(train_arguments(config, dir, {"model.hidden=64"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("cannot continue " + dir +
                        ": model.hidden was 32, is 64 now; set it back or use another run.dir"));
  const auto sgd = run_patiently(train_arguments(config, dir, {"optim.kind=sgd"}));
  EXPECT_EQ(sgd.code, 2);
  EXPECT_THAT(sgd.err, HasSubstr("optim.kind was \"adamw\", is \"sgd\" now"))
      << "not a tensor's name";
}

TEST(AnotherRun, IsToldByItsDataAndNotByTheNameOfAFile) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run", file = folder / "a.bin";
  const auto data = [](const std::string& path, std::vector<std::string> more) {
    more.insert(more.end(), {"data.kind=tokens", "data.path=" + path});
    return more;
  };
  ASSERT_EQ(
      run_patiently({kTrireme, "data", "make", file, "--tokens", "2000", "--vocab", "64"}).code, 0);
  ASSERT_EQ(run_patiently(train_arguments(config, dir, data(file, {"run.steps=4"}))).code, 0);
  const std::string tokens = bytes_of(file);
  put_bytes(folder / "copy.bin", tokens);
  const auto renamed = run_patiently(train_arguments(
      config, dir,
      data(folder / "copy.bin", {"run.steps=6", "eval.every=6", "data.valid=" + file})));
  EXPECT_EQ(renamed.code, 0) << renamed.err << "the same tokens, and something to evaluate on";

  put_bytes(file, tokens + tokens.substr(0, 320));
  const auto appended = run_patiently(train_arguments(config, dir, data(file, {})));
  EXPECT_EQ(appended.code, 2);
  EXPECT_THAT(
      appended.err,
      AllOf(HasSubstr("cannot continue " + dir + ": the data was 124 samples (2000 tokens, "),
            HasSubstr("is 134 samples (2160 tokens, "), HasSubstr("data.allow_change=true"),
            HasSubstr("set it back or use another run.dir")));
  std::string other = tokens;
  other[0] = static_cast<char>(other[0] ^ 1);
  put_bytes(file, other);
  EXPECT_EQ(run_patiently(train_arguments(config, dir, data(file, {}))).code, 2)
      << "as many, but others";
  const auto allowed = run_patiently(
      train_arguments(config, dir, data(file, {"run.steps=8", "data.allow_change=true"})));
  EXPECT_EQ(allowed.code, 0) << allowed.err;
}

TEST(AnotherRun, MayComputeInAnotherPrecision) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  ASSERT_EQ(run_patiently(train_arguments(config, dir, {"run.steps=4"})).code, 0);
  const auto result = run_patiently(train_arguments(
      config, dir, {"run.steps=6", "precision.compute=float64", "precision.reduce=float64"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(numbers_of(dir, "loss").size(), 6u);
}

TEST(AnotherRun, DoesNotBeginBeforeWhatTheFolderHolds) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  ASSERT_EQ(run_patiently(train_arguments(config, dir, {"run.steps=8"})).code, 0);
  for (const std::string& resume : {std::string("never"), dir + "/checkpoints/step-00000004"}) {
    const auto result =
        run_patiently(train_arguments(config, dir, {"checkpoint.resume=" + resume}));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("step 8"), HasSubstr("another run.dir")));
  }
  const auto moved = run_patiently(train_arguments(
      config, folder / "other", {"checkpoint.resume=" + dir + "/checkpoints/step-00000004"}));
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_THAT(moved.out, HasSubstr("continues from"));
}

TEST(NotFinite, StopsWithTheStepAndTheTensorAndKeepsTheLastCheckpoint) {
  const Scratch folder;
  const std::string dir = folder / "run";
  const auto result = run_patiently(train_arguments(
      tiny_config(folder), dir,
      {"optim.kind=sgd", "optim.lr=1e20", "optim.clip=0", "optim.warmup=0", "checkpoint.every=1"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("step "), HasSubstr("not finite"), HasSubstr("'")));
  EXPECT_EQ(run_patiently({kTrireme, "ckpt", "verify", dir}).code, 0) << "the one before is whole";
}

TEST(FullDisk, CostsTheCheckpointAndNotTheRun) {
  const Scratch folder;
  const SmallDisk disk(folder / "disk", "900k");
  if (!disk.available()) GTEST_SKIP() << "only root may mount a small disk";
  // One checkpoint fits; beside it there is no room for a second.
  const auto result = run_patiently(
      train_arguments(tiny_config(folder), disk / "run", {"model.hidden=48", "checkpoint.keep=5"}));
  EXPECT_THAT(result.err, AllOf(HasSubstr("is not saved"), HasSubstr("No space left on device"),
                                HasSubstr("; training goes on")));
  EXPECT_EQ(texts_of(disk / "run", "loss").size(), 20u) << "every step was made";
  EXPECT_EQ(result.code, 1) << "but its end is not on disk, and that is said";
  EXPECT_EQ(run_patiently({kTrireme, "ckpt", "verify", disk / "run"}).code, 0);
}

TEST(FullDisk, EndsABenchmarkWhichHasNoTrainingToGoOnWith) {
  const Scratch folder;
  const SmallDisk disk(folder / "disk", "900k");
  if (!disk.available()) GTEST_SKIP() << "only root may mount a small disk";
  const auto result =
      run_patiently({kTrireme, "bench", "checkpoint", "--dir", disk / "", "--bytes", "32M"});
  EXPECT_NE(result.code, 0) << result.out;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("No space left on device"), Not(HasSubstr("training goes on"))));
}

struct RefusedInput {
  std::vector<std::string> overrides;
  std::vector<std::string> said;
  int code = 2;
};

TEST(BadInput, IsOneSentenceAndAnExitCode) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  std::ofstream(folder / "odd.bin") << "abc";
  std::ofstream(folder / "empty.bin");
  {
    std::ofstream beyond(folder / "beyond.bin", std::ios::binary);
    for (int i = 0; i < 200; ++i) beyond.write(i == 150 ? "\xff\x00" : "\x01\x00", 2);
  }
  const std::string odd = folder / "odd.bin", empty = folder / "empty.bin";
  std::vector<RefusedInput> refusals = {
      {{"model.layres=3"}, {"model.layres", "model.layers"}},
      {{"run.steps=many"}, {"run.steps", "whole number"}},
      {{"run.steps=-1"}, {"run.steps", "-1"}},
      {{"run.threads=100000"}, {"run.threads", "1024"}},
      {{"run.device=cuda"}, {"run.device"}},
      {{"data.kind=tokens", "data.path=" + folder / "beyond.bin", "eval.every=5"}, {"data.valid"}},
      {{"mesh.replica=2", "mesh.shard=0", "mesh.replica=0"}, {"mesh"}},
      {{"mesh.context=500"}, {"mesh.context = 500 cuts a sequence in 1000 pieces"}},
      {{"precision.compute=float16", "precision.master=none"}, {"precision.master", "bfloat16"}},
      {{"precision.keep=[\"*.ln*\"]"}, {"precision.keep", "precision.compute=bfloat16"}},
      {{"model.heads=3"}, {"32", "3"}},
      {{"model.kind=moe-gpt", "model.top_k=9"}, {"model.top_k = 9", "model.experts = 8"}},
      {{"mesh.expert=2"}, {"mesh.expert = 2", "moe-gpt"}},
      {{"data.kind=tokens"}, {"data.path"}},
      {{"data.kind=tokens", "data.path=/nowhere.bin"},
       {"/nowhere.bin: No such", "trireme data make /nowhere.bin --vocab 64"}},
      {{"data.kind=tokens", "data.path=" + odd}, {odd, "trireme data make"}},
      {{"data.kind=tokens", "data.path=" + empty}, {empty, "trireme data make"}},
      {{"data.path=" + config}, {config + " is a text"}},
      {{"data.path=" + folder.path()}, {folder.path() + " is not a file"}},
      {{"model.layers=99999999999999999999"}, {"99999999999999999999 is too large"}},
      {{"run.seed=18446744073709551615"}, {"is too large; it must be a whole number"}},
      {{"optim.lr=1e999"}, {"optim.lr = 1e999 is too large"}},
      {{"data.kind=tokens", "data.path=" + folder / "beyond.bin"}, {"255", "vocab"}, 1},
      {{"run.dir=/proc/nothing"}, {"/proc/nothing"}},
      {{"checkpoint.resume=/nowhere"}, {"there is no checkpoint '/nowhere'"}},
      {{"checkpoint.resume=" + folder.path()}, {"not a finished checkpoint", "index.json"}},
  };
  for (const RefusedInput& refusal : refusals) {
    SCOPED_TRACE(refusal.overrides.back());
    const auto result = run_command(train_arguments(config, folder / "run", refusal.overrides),
                                    {.environment = kNoGpus, .deadline = kPatience});
    EXPECT_EQ(result.code, refusal.code) << result.err;
    for (const std::string& part : refusal.said) EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_THAT(result.err, Not(HasSubstr("frame #"))) << "no stack";
    // What was asked wrongly is one sentence; of a failure the launcher also says whose it was.
    EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), refusal.code == 2 ? 1 : 3)
        << result.err;
    EXPECT_THAT(result.err, StartsWith("trireme train: "));
  }
  EXPECT_EQ(run_patiently({kTrireme, "train"}).code, 2);
  EXPECT_EQ(run_patiently({kTrireme, "train", folder / "none.toml"}).code, 2);
}

}  // namespace
}  // namespace trireme::test
