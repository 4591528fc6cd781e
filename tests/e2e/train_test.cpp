// `trireme train` as people use it: the files of a run, the same numbers on every mesh, PyTorch's
// losses, stopping and going on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "support/curves.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// The largest relative difference of two curves.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

TEST(Train, WritesTheFilesOfARunAndLearns) {
  const Scratch folder;
  const std::string dir = folder / "run";
  const auto result = must(train_arguments(
      tiny_config(folder), dir, {"eval.every=10", "log.samples=true", "checkpoint.keep=2"}));
  EXPECT_THAT(result.out, AllOf(HasSubstr("lowest possible loss: "), HasSubstr("step 20/20"),
                                HasSubstr("done at step 20")));
  const auto losses = numbers_of(dir, "loss");
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_LT(losses.back(), losses.front() - 0.1);
  EXPECT_EQ(numbers_of(dir, "eval_loss").size(), 2u);
  EXPECT_EQ(numbers_of(dir, "floor").size(), 20u);
  for (const char* field :
       {"weight", "grad_norm", "lr", "tokens_per_s", "step_ms", "data_ms", "pss_mib"})
    EXPECT_EQ(numbers_of(dir, field).size(), 20u) << field;
  for (const char* file :
       {"config.toml", "samples.jsonl", "log/rank-0.log", "log/rank-1.log",
        "checkpoints/step-00000016/index.json", "checkpoints/step-00000020/index.json"})
    EXPECT_TRUE(fs::exists(dir + "/" + file)) << file;
  EXPECT_FALSE(fs::exists(dir + "/checkpoints/step-00000012")) << "only the newest two are kept";
  must({kTrireme, "ckpt", "verify", dir});
  EXPECT_THAT(must({kTrireme, "train", dir + "/config.toml"}).out,
              HasSubstr("already at step 20 (run.steps = 20)"))
      << "the resolved configuration is one, and a finished run says that it is";
}

TEST(Train, GivesTheSameLossesOnEveryNumberOfReplicas) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> in_double = {"precision.compute=float64",
                                              "precision.reduce=float64", "model.dropout=0.1",
                                              "checkpoint.every=0"};
  std::vector<std::vector<double>> curves;
  for (const char* mesh : {"mesh.replica=1", "mesh.replica=2", "mesh.replica=3"}) {
    auto overrides = in_double;
    overrides.push_back(mesh);
    must(train_arguments(config, folder / mesh, overrides));
    curves.push_back(numbers_of(folder / mesh, "loss"));
  }
  EXPECT_LE(difference(curves[1], curves[0]), 1e-12);
  EXPECT_LE(difference(curves[2], curves[0]), 1e-12);
}

TEST(Train, GivesTheSameBitsOnEveryBackendAndEveryTime) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  std::vector<std::vector<std::string>> curves;
  for (const char* backend : {"shm", "shm", "tcp", "local"}) {
    const std::string dir = folder / (backend + std::to_string(curves.size()));
    must(train_arguments(config, dir, {std::string("comm.backend=") + backend}));
    curves.push_back(texts_of(dir, "loss"));
    EXPECT_EQ(curves.back(), curves.front()) << backend;
  }
}

TEST(Train, RecomputesWithoutChangingABit) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  std::vector<std::vector<std::string>> curves;
  for (const char* how : {"none", "block", "selective", "cheap"}) {
    must(train_arguments(config, folder / how,
                         {std::string("memory.recompute=") + how, "model.dropout=0.2"}));
    curves.push_back(texts_of(folder / how, "loss"));
    EXPECT_EQ(curves.back(), curves.front()) << how;
  }
}

/// The tensors of a checkpoint, as the bytes of its files.
std::map<std::string, std::string> saved_tensors(const fs::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& file : fs::directory_iterator(checkpoint))
    if (file.path().extension() == ".safetensors")
      files[file.path().filename()] = bytes_of(file.path());
  return files;
}

TEST(Train, GivesTheSameBitsOnSeveralThreadsEveryTime) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  std::vector<std::map<std::string, std::string>> saved;
  for (const auto& [name, seed] : {std::pair("once", 1), {"again", 1}, {"other", 2}}) {
    const std::string dir = folder / name;
    // Wide enough that kernels cut their work over the threads.
    must(train_arguments(config, dir,
                         {"run.threads=4", "run.device=cpu", "model.hidden=128", "model.seq=64",
                          "mesh.replica=1", "run.seed=" + std::to_string(seed)}));
    saved.push_back(saved_tensors(dir + "/checkpoints/step-00000020"));
    ASSERT_FALSE(saved.back().empty());
  }
  EXPECT_TRUE(saved[0] == saved[1]);
  EXPECT_FALSE(saved[0] == saved[2]) << "these bytes are no weights";
}

TEST(Train, GivesTheLossesOfPyTorch) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const std::string tokens = folder / "tokens.u16";
  must({kTrireme, "data", "make", tokens, "--tokens", "4000", "--vocab", "64"});
  const std::vector<std::string> data = {"data.kind=tokens", "data.path=" + tokens,
                                         "log.samples=true", "checkpoint.keep=100"};
  auto first = data;
  first.push_back("run.steps=0");
  must(train_arguments(config, dir, first));
  must(train_arguments(config, dir, data));
  const auto theirs =
      must({python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_gpt.py", dir, tokens, "20"});
  std::istringstream lines(theirs.out);
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) losses.push_back(std::stod(line));
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_LE(difference(numbers_of(dir, "loss"), losses), 1e-4);
  EXPECT_LT(losses.back(), losses.front() - 0.1) << "both have learned something";
}

TEST(Train, WritesFilesThatPythonsSafetensorsReads) {
  const Scratch folder;
  const std::string dir = folder / "run", whole = folder / "whole", flat = folder / "flat";
  must(train_arguments(tiny_config(folder), dir,
                       {"run.steps=4", "mesh.replica=2", "mesh.tensor=2", "model.heads=2"}));
  must({kTrireme, "ckpt", "reshard", dir, whole});
  must({kTrireme, "ckpt", "reshard", dir, flat, "--ranks", "3"});
  const std::string step = dir + "/checkpoints/step-00000004";
  const auto parts = run_command(
      {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/read_checkpoint.py", step, whole, flat},
      {.deadline = kPatience});
  EXPECT_EQ(parts.code, 0) << parts.err << "(scripts/setup installs Python's safetensors)";
  EXPECT_THAT(parts.out, HasSubstr("in 3 checkpoints, equal"));
  const auto result =
      run_command({python_with_torch(), "-c",
                   "import sys\n"
                   "from safetensors.torch import load_file\n"
                   "t = load_file(sys.argv[1])\n"
                   "print(tuple(t['wte.weight'].shape), float(t['wte.weight'].abs().max()) > 0, "
                   "tuple(t['optim/exp_avg/ln_f.bias'].shape))\n",
                   whole + "/part-00000.safetensors"},
                  {.deadline = kPatience});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("(64, 32) True (32,)"));
}

TEST(Train, StopsOnASignalSavesAndGoesOnAsIfNothingHadHappened) {
  const Scratch folder;
  const std::string config = tiny_config(folder), whole = folder / "whole";
  const std::vector<std::string> longer = {"run.steps=300", "checkpoint.every=0"};
  must(train_arguments(config, whole, longer));
  for (const int number : {SIGINT, SIGTERM}) {
    const std::string dir = folder / ("stopped" + std::to_string(number));
    Command stopped(train_arguments(config, dir, longer), {.deadline = kPatience});
    ASSERT_TRUE(stopped.wait_for("step 20/300"));
    stopped.signal(number);
    const auto result = stopped.finish();
    EXPECT_EQ(result.code, number == SIGINT ? 0 : 143) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped at step"));
    ASSERT_LT(texts_of(dir, "loss").size(), 300u);
    EXPECT_THAT(must(train_arguments(config, dir, longer)).out, HasSubstr("continues from"));
    EXPECT_EQ(texts_of(dir, "loss"), texts_of(whole, "loss"));
    must({kTrireme, "ckpt", "diff", dir, whole});
  }
}

TEST(Train, ContinuesOnAnotherNumberOfReplicas) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run", whole = folder / "whole";
  const std::vector<std::string> in_double = {"precision.compute=float64",
                                              "precision.reduce=float64"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), in_double.begin(), in_double.end());
    return more;
  };
  // The schedule belongs to the whole run, so the first part is ended by a signal's twin: constant.
  must(train_arguments(config, whole, with({"mesh.replica=1", "optim.schedule=constant"})));
  must(train_arguments(config, dir,
                       with({"mesh.replica=3", "run.steps=8", "optim.schedule=constant"})));
  must(train_arguments(config, dir, with({"mesh.replica=2", "optim.schedule=constant"})));
  EXPECT_LE(difference(numbers_of(dir, "loss"), numbers_of(whole, "loss")), 1e-12);
}

TEST(Train, RunsUnderALauncherThatIsThereAlready) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  std::vector<std::string> command = {kTrireme, "run", "-n", "2"};
  const auto train = train_arguments(config, folder / "run", {"mesh.replica=0"});
  command.insert(command.end(), train.begin(), train.end());
  EXPECT_THAT(must(command).out, HasSubstr("2 ranks"));
  command[3] = "3";
  command.push_back("mesh.replica=2");
  EXPECT_THAT(run_command(command, {.deadline = kPatience}).err,
              HasSubstr("the launcher started 3: use -n 2 or mesh.replica=3"));
}

TEST(Train, CheckRunsNothingAndCountsTheMemory) {
  const Scratch folder;
  const auto result = must(train_arguments(tiny_config(folder), folder / "run", {"--check"}));
  EXPECT_THAT(result.out, AllOf(HasSubstr("replica 2"), HasSubstr("gradients"),
                                HasSubstr("copy while saving")));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Train, BenchPrintsOneLine) {
  const Scratch folder;
  auto command = train_arguments(tiny_config(folder), folder / "run");
  command.insert(command.begin() + 1, "bench");
  const auto result = must(command);
  EXPECT_THAT(result.out, AllOf(HasSubstr(R"({"bench":"train","ranks":2,"tokens_per_s":)"),
                                HasSubstr("pss_mib"), HasSubstr("last_loss")));
}

}  // namespace
}  // namespace trireme::test
