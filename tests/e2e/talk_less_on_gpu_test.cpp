// What talks less trains on a GPU as on the CPU, and can give the same bits twice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/on_gpu.h"
#include "support/training.h"

namespace trireme::test {
namespace {

using Keys = std::vector<std::string>;

struct OnGpu {
  const char* name;
  Keys keys;
};

class TalkingLessOnAGpu : public ::testing::TestWithParam<OnGpu> {};

TEST_P(TalkingLessOnAGpu, TrainsAsOnTheCpu) {
  NEEDS_GPU();
  const Scratch folder;
  const auto losses_on = [&](const std::string& device, const std::string& dir) {
    Keys keys = {"run.steps=12", "run.deterministic=true", "run.device=" + device, "batch.micro=2",
                 "optim.schedule=constant"};
    keys.insert(keys.end(), GetParam().keys.begin(), GetParam().keys.end());
    const auto done = run_patiently(train_arguments(tiny_config(folder), folder / dir, keys));
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    return numbers_of(folder / dir, "loss");
  };
  const auto cpu = losses_on("cpu", "cpu"), gpu = losses_on("cuda", "gpu");
  ASSERT_EQ(cpu.size(), 12u);
  ASSERT_EQ(gpu.size(), cpu.size());
  // Sums round differently there, and what a compressor sends depends on the last bits.
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 2e-3 * cpu[i]) << i;
  if (std::string(GetParam().name) == "auto") return;  // another run may measure, and choose, anew
  EXPECT_EQ(gpu, losses_on("cuda", "again"));
}

INSTANTIATE_TEST_SUITE_P(
    Of, TalkingLessOnAGpu,
    ::testing::Values(OnGpu{"int8", {"compress.kind=int8"}},
                      OnGpu{"topkSharded",
                            {"compress.kind=topk", "compress.ratio=0.1", "mesh.shard=2",
                             "mesh.replica=1", "memory.shard=gradients"}},
                      OnGpu{"powersgd", {"compress.kind=powersgd"}},
                      OnGpu{"auto", {"compress.kind=auto"}},
                      OnGpu{"diloco", {"sync.kind=diloco", "sync.every=3", "sync.lr=0.7"}},
                      OnGpu{"streaming",
                            {"sync.kind=diloco", "sync.every=4", "sync.fragments=2", "sync.delay=1",
                             "compress.kind=int8"}},
                      OnGpu{"pipedream",
                            {"mesh.replica=1", "mesh.pipe=2", "pipeline.schedule=pipedream-2bw",
                             "optim.clip=0", "model.tie=false"}}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace trireme::test
