// `trireme train` with pipelines that do not drain between steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "support/curves.h"
#include "support/leftovers.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kStages = {
    "model.layers=4", "batch.global=8",  "batch.micro=2",  "mesh.replica=1",
    "optim.clip=0",   "model.tie=false", "run.device=cpu", "pipeline.balance=params"};

std::vector<std::string> asynchronous(const std::string& schedule, int pipe) {
  return with(kStages, {"pipeline.schedule=" + schedule, "mesh.pipe=" + std::to_string(pipe)});
}

TEST(TrainAsynchronously, TheBitsDoNotDependOnBackendsEvaluationsAndCheckpoints) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  for (const auto& keys :
       {asynchronous("pipedream-2bw", 2), with(asynchronous("pipedream", 3), {"batch.micro=8"})}) {
    const std::string dir = folder / keys[kStages.size()];
    must(train_arguments(config, dir + "shm", with(keys, {"checkpoint.every=0"})));
    const auto losses = texts_of(dir + "shm", "loss");
    EXPECT_EQ(losses.size(), 20u);
    must(train_arguments(
        config, dir + "tcp",
        with(keys, {"comm.backend=tcp", "eval.every=3", "eval.batches=1", "checkpoint.every=4"})));
    EXPECT_EQ(texts_of(dir + "tcp", "loss"), losses);
    EXPECT_EQ(texts_of(dir + "tcp", "grad_norm"), texts_of(dir + "shm", "grad_norm"));
    EXPECT_EQ(texts_of(dir + "tcp", "eval_loss").size(), 6u);
    must(train_arguments(config, dir + "local",
                         with(keys, {"comm.backend=local", "check.hash_every=1"})));
    EXPECT_EQ(texts_of(dir + "local", "loss"), losses);
  }
}

/// Kills a rank once the run has reached a step; a run that is started again must give the bits of
/// one that was never disturbed.
void kill_and_continue(const std::vector<std::string>& keys, const std::string& step, int signal) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const auto all = with(keys, {"run.steps=120", "checkpoint.every=10", "log.every=5"});
  must(train_arguments(config, folder / "whole", all));
  const std::string marker = unique_marker();
  {
    Command run(train_arguments(config, dir, all),
                {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience});
    ASSERT_TRUE(run.wait_for("step " + step + "/120"));
    if (signal == SIGKILL) {
      const auto ranks = ranks_of(marker);
      ASSERT_FALSE(ranks.empty());
      ::kill(ranks.back(), signal);
    } else {
      ::kill(run.pid(), signal);
    }
    EXPECT_EQ(run.finish().code, 128 + signal);
  }
  EXPECT_TRUE(eventually([&] { return processes_with("TRIREME_TEST_MARK", marker).empty(); }));
  EXPECT_THAT(must(train_arguments(config, dir, all)).out, HasSubstr("continues from"));
  EXPECT_EQ(texts_of(dir, "loss"), texts_of(folder / "whole", "loss"));
}

TEST(TrainAsynchronously, KilledAndStartedAgainItGivesTheSameBits) {
  kill_and_continue(asynchronous("pipedream-2bw", 2), "55", SIGKILL);
  kill_and_continue(with(asynchronous("pipedream", 3), {"batch.micro=8"}), "60", SIGKILL);
}

TEST(TrainAsynchronously, AskedToStopItDrainsSavesAndGoesOnWithTheSameBits) {
  kill_and_continue(
      with(asynchronous("pipedream", 3), {"batch.micro=4", "pipeline.vertical_sync=true"}), "35",
      SIGTERM);
}

TEST(TrainAsynchronously, GoesOnWithAnotherScheduleAndAnotherMesh) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "moving";
  const auto first = with(kStages, {"optim.schedule=constant"});
  for (const auto& leg : std::vector<std::vector<std::string>>{
           {"run.steps=4", "mesh.pipe=2", "pipeline.schedule=pipedream-2bw"},
           {"run.steps=8", "mesh.pipe=3", "pipeline.schedule=pipedream"},
           {"run.steps=12", "mesh.pipe=2", "pipeline.schedule=1f1b"},
           {"run.steps=16", "mesh.pipe=2", "pipeline.schedule=pipedream-2bw"}})
    must(train_arguments(config, dir, with(first, leg)));
  EXPECT_EQ(texts_of(dir, "loss").size(), 16u);
}

TEST(TrainAsynchronously, ALossThatIsNotFiniteEndsTheRunWithItsStep) {
  const Scratch folder;
  const auto result = must(
      train_arguments(
          tiny_config(folder), folder / "run",
          with(asynchronous("pipedream", 3), {"batch.micro=8", "optim.lr=1e36", "optim.warmup=0"})),
      1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the loss is"), HasSubstr("other stages may have made"),
                                HasSubstr("Lower optim.lr")));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("different operations")));
}

TEST(TrainAsynchronously, CheckCountsTheVersionsAndVerifySaysWhatItProves) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto keys = asynchronous("pipedream-2bw", 2);
  EXPECT_THAT(must(with(with({kTrireme, "train", config}, keys), {"--check"})).out,
              AllOf(HasSubstr("4 micro-batches by pipedream-2bw"), HasSubstr("past weights")));
  EXPECT_THAT(must(with({kTrireme, "verify", config}, keys)).out,
              HasSubstr("not meant to equal one rank: pipeline.schedule = \"pipedream-2bw\""));
}

}  // namespace
}  // namespace trireme::test
