// Ranks that share one GPU: their tensors travel through pinned host memory.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "support/run_ranks.h"
#include "trireme/trireme.h"

namespace trireme::test {
namespace {

bool available() {
  return torch::cuda::is_available();
}

comm::Communicator join_on_gpu(const Rank& me) {
  return init("file://" + (me.scratch / "store").string() + "?rank=" + std::to_string(me.rank) +
              "&size=" + std::to_string(me.size));
}

TEST(Cuda, FourRanksOnOneGpuReduceTheirTensors) {
  if (!available()) GTEST_SKIP() << "no CUDA device, or a libtorch without CUDA";
  run_ranks(
      4,
      [](const Rank& me) {
        const auto world = join_on_gpu(me);
        const auto gpu = torch::TensorOptions().device(torch::kCUDA, 0);
        for (int64_t count : {1, 1000, 3'000'000}) {
          auto x = torch::arange(count, gpu.dtype(torch::kFloat)) + 1000.0 * me.rank;
          world.all_reduce(x).wait();
          EXPECT_TRUE(torch::equal(x.cpu(), torch::arange(count, torch::kFloat) * 4.0 + 6000.0))
              << count;

          auto work = world.broadcast(x.mul_(me.rank + 1), 2);
          work.synchronize();
          EXPECT_TRUE(
              torch::equal(x.cpu(), (torch::arange(count, torch::kFloat) * 4.0 + 6000.0) * 3.0))
              << count;

          auto part = torch::full({count}, me.rank, gpu.dtype(torch::kInt));
          auto all = torch::empty({4 * count}, gpu.dtype(torch::kInt));
          world.all_gather(all, part).wait();
          EXPECT_TRUE(
              torch::equal(all.cpu(), torch::arange(4, torch::kInt).repeat_interleave(count)))
              << count;

          auto sum = torch::empty({count}, gpu.dtype(torch::kInt));
          world.reduce_scatter(sum, all).wait();
          EXPECT_TRUE(torch::equal(sum.cpu(), torch::full({count}, 4 * me.rank, torch::kInt)))
              << count;

          // A ring of sends: what follows a wait() on the stream sees what came.
          auto token = torch::full({count}, static_cast<double>(me.rank), gpu.dtype(torch::kFloat)),
               got = torch::empty({count}, gpu.dtype(torch::kFloat));
          auto sent = world.send(token, (me.rank + 1) % 4);
          world.recv(got, (me.rank + 3) % 4).wait();
          sent.wait();
          EXPECT_EQ((got + 1).sum().item<double>(),
                    static_cast<double>(count) * ((me.rank + 3) % 4 + 1))
              << count;
        }
        EXPECT_TRUE(world.allocate({16}, gpu).is_cuda());
      },
      {.deadline = std::chrono::seconds(120)});
}

}  // namespace
}  // namespace trireme::test
