// `trireme train` with compressed gradients: kill and resume to the bit, other meshes, error
// feedback, and what is refused.
#include <gmock/gmock.h>
#include <signal.h>

#include "support/training.h"

namespace trireme::test::compressed {
namespace {

using ::testing::HasSubstr;

CommandResult must_train(const std::string& config, const std::string& dir,
                         const std::vector<std::string>& keys, int code = 0) {
  auto result = run_patiently(train_arguments(config, dir, keys));
  EXPECT_EQ(result.code, code) << result.out << result.err;
  return result;
}

std::vector<std::string> joined(std::vector<std::string> all,
                                const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// A run of 12 steps in one go, and the same one stopped after 5 and continued.
void expect_same_in_two_parts(const std::vector<std::string>& keys) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto all = joined({"run.steps=12", "optim.schedule=constant", "checkpoint.every=5"}, keys);
  must_train(config, folder / "whole", all);
  must_train(config, folder / "parts", joined(all, {"run.steps=5"}));
  must_train(config, folder / "parts", all);
  EXPECT_EQ(texts_of(folder / "parts", "loss"), texts_of(folder / "whole", "loss"));
  EXPECT_EQ(texts_of(folder / "parts", "loss").size(), 12u);
}

TEST(CompressedTraining, ThatStopsContinuesToTheBit) {
  for (const std::string kind : {"fp16", "bf16", "int8", "onebit", "powersgd"}) {
    SCOPED_TRACE(kind);
    expect_same_in_two_parts({"compress.kind=" + kind});
  }
  for (const std::string kind : {"topk", "randomk"}) {
    SCOPED_TRACE(kind);
    expect_same_in_two_parts({"compress.kind=" + kind, "compress.ratio=0.05"});
  }
}

TEST(CompressedTraining, ThatIsShardedOrCutContinuesToTheBit) {
  expect_same_in_two_parts({"compress.kind=int8", "mesh.replica=2", "mesh.shard=2"});
  expect_same_in_two_parts({"compress.kind=topk", "mesh.replica=2", "mesh.pipe=2"});
  expect_same_in_two_parts({"compress.kind=powersgd", "compress.rank=2", "mesh.replica=1",
                            "mesh.shard=2", "memory.shard=gradients",
                            "precision.compute=float16"});
}

TEST(CompressedTraining, ThatIsKilledContinuesToTheBit) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> keys = {"compress.kind=topk", "compress.ratio=0.05",
                                         "run.steps=60", "checkpoint.every=3"};
  must_train(config, folder / "whole", keys);
  {
    Command killed(train_arguments(config, folder / "killed", joined(keys, {"log.every=1"})),
                   {.deadline = kPatience});
    ASSERT_TRUE(killed.wait_for("step 25/"));
    ::kill(killed.pid(), SIGKILL);
    killed.finish();
  }
  must_train(config, folder / "killed", keys);
  EXPECT_EQ(texts_of(folder / "killed", "loss"), texts_of(folder / "whole", "loss"));
}

TEST(CompressedTraining, GoesOnFromMeshToMesh) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=2"},
      {"mesh.replica=1", "mesh.shard=2"},
      {"mesh.replica=3"},
      {"mesh.replica=1", "mesh.pipe=2", "mesh.shard=2"}};
  int steps = 0;
  for (const auto& mesh : meshes) {
    steps += 5;
    must_train(config, folder / "run",
               joined({"compress.kind=topk", "compress.ratio=0.1", "optim.schedule=constant",
                       "run.steps=" + std::to_string(steps)},
                      mesh));
  }
  const auto losses = numbers_of(folder / "run", "loss");
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_LT(losses.back(), losses.front());
}

/// The mean of the last ten losses.
double end_of(const std::string& dir) {
  const auto losses = numbers_of(dir, "loss");
  double sum = 0;
  for (std::size_t i = losses.size() - 10; i < losses.size(); ++i) sum += losses[i];
  return sum / 10;
}

TEST(ErrorFeedback, MakesTopkConvergeWithOnePercent) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> keys = {"run.steps=300",        "optim.kind=sgd",
                                         "optim.lr=0.5",         "optim.momentum=0",
                                         "optim.clip=0",         "optim.schedule=constant",
                                         "optim.weight_decay=0", "checkpoint.every=0",
                                         "data.samples=512",     "batch.global=16"};
  const auto topk = joined(keys, {"compress.kind=topk", "compress.ratio=0.01"});
  must_train(config, folder / "plain", keys);
  must_train(config, folder / "with", topk);
  must_train(config, folder / "without", joined(topk, {"compress.feedback=false"}));
  const double first = numbers_of(folder / "plain", "loss").front();
  const double plain = first - end_of(folder / "plain"), with = first - end_of(folder / "with"),
               without = first - end_of(folder / "without");
  std::printf("the loss falls by %.4f; topk 1 %%: by %.4f with feedback, by %.4f without\n", plain,
              with, without);
  EXPECT_GT(with, 0.9 * plain);
  EXPECT_LT(without, 0.6 * plain);
}

TEST(CompressedTraining, IsRefusedInOneSentence) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto said = [&](const std::vector<std::string>& keys) {
    return must_train(config, folder / "none", keys, 2).err;
  };
  EXPECT_THAT(said({"compress.kind=topk", "compress.ratio=0"}),
              HasSubstr("compress.ratio = 0.0 is out of range; it must be more than 0 and at most "
                        "1"));
  EXPECT_THAT(said({"compress.kind=powersgd", "compress.rank=0"}),
              HasSubstr("compress.rank = 0 is out of range"));
  EXPECT_THAT(said({"compress.kind=int8", "compress.ratio=0.1"}),
              HasSubstr("compress.ratio has no effect while compress.kind = \"int8\""));
  EXPECT_THAT(said({"compress.kind=int8", "compress.keep=[\"nothing.*\"]"}),
              HasSubstr("compress.keep: \"nothing.*\" matches no parameter"));
}

}  // namespace
}  // namespace trireme::test::compressed
