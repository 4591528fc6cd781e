// `trireme train` with tensors that travel in fewer bytes, and over a slow network.
#include <gmock/gmock.h>

#include <filesystem>

#include "support/curves.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TrainNarrow, ReplicasAgreeAndAResumedRunHasTheSameBits) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  for (const char* state : {"optimizer", "parameters"}) {
    const std::vector<std::string> keys = {
        "mesh.replica=2",        "mesh.shard=2",       std::string("memory.shard=") + state,
        "compress.gathers=int8", "check.hash_every=1", "checkpoint.every=5",
        "run.device=cpu"};
    const std::string whole = folder / (std::string("whole-") + state),
                      resumed = folder / (std::string("resumed-") + state);
    must(train_arguments(config, whole, keys));
    must(train_arguments(config, resumed, keys));
    for (const char* step : {"20", "15"})
      std::filesystem::remove_all(resumed + "/checkpoints/step-000000" + step);
    EXPECT_THAT(must(train_arguments(config, resumed, keys)).out, HasSubstr("continues from"));
    EXPECT_EQ(texts_of(resumed, "loss"), texts_of(whole, "loss"));
  }
}

TEST(TrainNarrow, MemoryIsForetoldAlsoWhereMastersStandApart) {
  const Scratch folder;
  const double ratio = foretold_by_measured(
      tiny_config(folder), {"model.hidden=256", "mesh.replica=1", "mesh.shard=2",
                            "memory.shard=optimizer", "compress.gathers=bf16", "run.device=cpu"});
  EXPECT_GT(ratio, 0.9);
  EXPECT_LT(ratio, 1.1);
}

TEST(TrainNarrow, APipelineOverASlowNetworkHasTheLossesOfAFastOne) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> keys = {"mesh.replica=1", "mesh.pipe=2", "compress.transfers=int8",
                                         "run.steps=5", "run.device=cpu"};
  must(train_arguments(config, folder / "fast", with(keys, {"comm.backend=shm"})));
  const auto slow = must(train_arguments(config, folder / "slow",
                                         with(keys, {"comm.backend=tcp", "comm.rate_mbit=20"})));
  EXPECT_THAT(slow.out + slow.err, Not(HasSubstr("has no effect")));
  EXPECT_EQ(texts_of(folder / "slow", "loss"), texts_of(folder / "fast", "loss"));
}

TEST(TrainNarrow, ALimitThatLimitsNothingIsReported) {
  const Scratch folder;
  const auto result = must(train_arguments(tiny_config(folder), folder / "a",
                                           {"mesh.replica=2", "run.steps=1", "comm.rate_mbit=20"}));
  EXPECT_THAT(result.out + result.err,
              HasSubstr("the limit of 20 Mbit/s (comm.rate_mbit, TRIREME_RATE_MBIT) has no effect: "
                        "the ranks communicate over shm; use comm.backend=tcp"));
}

}  // namespace
}  // namespace trireme::test
