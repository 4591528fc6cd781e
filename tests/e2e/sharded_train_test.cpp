// `trireme train` on meshes that shard the state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/curves.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TrainOnAShardAxis, GivesTheLossesOfOneRank) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  must(
      train_arguments(config, folder / "one", with(kInDouble, {"mesh.replica=1", "eval.every=5"})));
  const auto alone = numbers_of(folder / "one", "loss");
  ASSERT_EQ(alone.size(), 20u);
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=1", "mesh.shard=3", "memory.recompute=block", "eval.every=5"},
      {"mesh.replica=2", "mesh.shard=2", "memory.shard=gradients", "check.hash_every=2"},
      {"mesh.replica=1", "mesh.shard=2", "mesh.tensor=2"},
      {"mesh.replica=1", "mesh.shard=2", "memory.shard=optimizer", "comm.backend=tcp"}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const std::string dir = folder / ("mesh" + std::to_string(i));
    must(train_arguments(config, dir, with(kInDouble, meshes[i])));
    expect_same_curve(numbers_of(dir, "loss"), alone);
    expect_same_curve(numbers_of(dir, "grad_norm"), numbers_of(folder / "one", "grad_norm"));
    if (i == 0)
      expect_same_curve(numbers_of(dir, "eval_loss"), numbers_of(folder / "one", "eval_loss"));
  }
}

TEST(TrainOnAShardAxis, GivesTheSameBitsAfterAStopAndOnEveryBackend) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> mesh = {"mesh.replica=1", "mesh.shard=2", "checkpoint.every=5",
                                         "run.device=cpu"};
  for (const char* backend : {"shm", "tcp", "local"})
    must(train_arguments(config, folder / backend,
                         with(mesh, {std::string("comm.backend=") + backend})));
  EXPECT_EQ(texts_of(folder / "shm", "loss"), texts_of(folder / "tcp", "loss"));
  EXPECT_EQ(texts_of(folder / "shm", "loss"), texts_of(folder / "local", "loss"));
  // A run that stopped after 10 steps, with the schedule of 20.
  const std::string dir = folder / "again";
  must(train_arguments(config, dir, with(mesh, {"run.steps=20"})));
  std::filesystem::remove_all(dir + "/checkpoints/step-00000020");
  std::filesystem::remove_all(dir + "/checkpoints/step-00000015");
  const auto resumed = must(train_arguments(config, dir, with(mesh, {"run.steps=20"})));
  EXPECT_THAT(resumed.out, HasSubstr("continues from"));
  EXPECT_EQ(texts_of(dir, "loss"), texts_of(folder / "shm", "loss"));
}

TEST(TrainOnAShardAxis, GoesOnWhereAnotherMeshHasStopped) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::string dir = folder / "moving";
  const std::vector<std::vector<std::string>> legs = {
      {"run.steps=5", "mesh.replica=1", "mesh.shard=4"},
      {"run.steps=10", "mesh.replica=1", "mesh.shard=2", "memory.shard=gradients"},
      {"run.steps=15", "mesh.replica=3", "mesh.shard=1"},
      {"run.steps=20", "mesh.replica=1", "mesh.shard=5"}};
  const std::vector<std::string> constant = {"optim.schedule=constant"};
  must(train_arguments(config, folder / "flat",
                       with(with(kInDouble, constant), {"mesh.replica=1"})));
  for (const auto& leg : legs)
    must(train_arguments(config, dir, with(with(kInDouble, constant), leg)));
  expect_same_curve(numbers_of(dir, "loss"), numbers_of(folder / "flat", "loss"));
}

TEST(TrainOnAShardAxis, IsProvedByVerify) {
  const Scratch folder;
  for (const char* what : {"optimizer", "gradients", "parameters"}) {
    const auto result = must({kTrireme, "verify", tiny_config(folder), "mesh.shard=2",
                              "mesh.replica=2", std::string("memory.shard=") + what});
    EXPECT_THAT(result.out, HasSubstr("same: 3 steps"));
  }
  for (const char* mistake : {"average", "reduce", "stale", "data"}) {
    const auto result = must({kTrireme, "verify", tiny_config(folder), "mesh.shard=3",
                              "mesh.replica=1", "--plant", mistake},
                             3);
    EXPECT_THAT(result.out + result.err, HasSubstr("differs")) << mistake;
  }
}

TEST(TrainOnAShardAxis, TakesTheMemoryThatCheckForetells) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=1"},
      {"mesh.replica=2"},
      {"mesh.replica=1", "mesh.shard=2"},
      {"mesh.replica=1", "mesh.shard=4", "memory.shard=gradients"},
      {"mesh.replica=1", "mesh.shard=2", "memory.shard=optimizer", "model.tie=false"},
      {"mesh.replica=1", "mesh.tensor=2"},
      {"mesh.replica=2", "mesh.shard=2", "memory.recompute=block"},
      {"mesh.replica=1", "memory.recompute=selective", "optim.kind=sgd"},
      {"mesh.replica=1", "memory.recompute=cheap"},
      {"mesh.replica=1", "model.kind=llama"},
      {"mesh.replica=1", "model.kind=llama", "memory.recompute=cheap", "model.kv_heads=2"},
      {"mesh.replica=2", "mesh.shard=2", "model.kind=llama", "memory.recompute=block"},
      {"mesh.replica=1", "mesh.tensor=2", "model.kind=llama", "memory.recompute=selective"},
      {"mesh.replica=1", "model.kind=mlp", "model.seq=8"}};
  for (const auto& mesh : meshes) {
    // Large enough that what is small does not show.
    const auto keys =
        with({"model.hidden=256", "model.layers=4", "model.vocab=1000", "model.heads=4",
              "batch.global=16", "batch.micro=4", "run.steps=3", "run.device=cpu"},
             mesh);
    EXPECT_NEAR(foretold_by_measured(config, keys), 1, 0.05) << ::testing::PrintToString(mesh);
  }
}

TEST(TrainOnAShardAxis, RefusesAWordThatItDoesNotKnow) {
  const Scratch folder;
  const auto result = must(train_arguments(tiny_config(folder), folder / "a",
                                           {"mesh.replica=1", "mesh.shard=2", "memory.shard=all"}),
                           2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("memory.shard"), HasSubstr("all")));
}

}  // namespace
}  // namespace trireme::test
