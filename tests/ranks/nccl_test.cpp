// Tensors on GPUs over NCCL: what the conformance suite, which waits for every result, does not
// see. Ranks share a GPU if there are too few; that takes NCCL 2.30 (TRIREME_NCCL_LIBRARY).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <torch/torch.h>

#include "support/run_ranks.h"
#include "support/sentence.h"
#include "support/through_gpu.h"
#include "trireme/core/error.h"
#include "trireme/trireme.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

#define NEEDS_NCCL() \
  if (!nccl_available()) GTEST_SKIP() << "no GPU, or no NCCL that lets ranks share one"

comm::Communicator join(const Rank& me) {
  ::setenv("TRIREME_BACKEND", "nccl", 1);
  ::setenv("TRIREME_HEARTBEAT_S", "1", 1);
  auto world = init("file://" + (me.scratch / "store").string() +
                    "?rank=" + std::to_string(me.rank) + "&size=" + std::to_string(me.size));
  world.set_timeout(20s);
  return world;
}

at::TensorOptions on_gpu(const Rank& me) {
  return at::TensorOptions().device(gpu_of(me.rank)).dtype(at::kFloat);
}

TEST(Nccl, WaitOrdersTheStreamAndSynchronizeTheHost) {
  NEEDS_NCCL();
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    EXPECT_EQ(world.backend(), "nccl");
    auto x = torch::full({1 << 20}, me.rank + 1.0, on_gpu(me));
    for (int round = 0; round < 20; ++round) {
      auto work = world.all_reduce(x);
      work.wait();  // returns at once; what follows on the stream waits
      x.div_(2);
    }
    EXPECT_EQ(x.min().item<float>(), 1.5);
    EXPECT_EQ(x.max().item<float>(), 1.5);
    auto work = world.all_reduce(x);
    work.synchronize();
    EXPECT_TRUE(work.done());
    // One that nobody waits for, whose tensor is a temporary.
    for (int round = 0; round < 50; ++round)
      (void)world.all_reduce(torch::ones({5000}, x.options()));
    // Ops on one tensor run in the order in which they were started, also if nobody waits between.
    auto y = torch::full({5000}, me.rank + 1.0, on_gpu(me));
    comm::Work last = world.all_reduce(y);
    last = world.all_reduce(y);
    last = world.broadcast(y, 0);
    last.wait();
    EXPECT_EQ(y.min().item<float>(), 6);
    EXPECT_EQ(y.max().item<float>(), 6);
    world.barrier();
  });
}

TEST(Nccl, HostMemoryAndGpuMemoryMixInOneGroup) {
  NEEDS_NCCL();
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    for (int round = 0; round < 10; ++round) {
      auto on_host = torch::full({100}, me.rank + 1.0), there = on_host.to(gpu_of(me.rank));
      auto first = world.all_reduce(there), second = world.all_reduce(on_host);
      second.wait();
      first.wait();
      EXPECT_EQ(there.sum().item<float>(), 300);
      EXPECT_EQ(on_host.sum().item<float>(), 300);
    }
  });
}

TEST(Nccl, BothDirectionsOfAPipeAndReceivesThatArePostedEarly) {
  NEEDS_NCCL();
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    const int peer = 1 - me.rank;
    for (int round = 0; round < 5; ++round) {
      const auto got = torch::zeros({300'000}, on_gpu(me));
      auto early = world.recv(got, peer, round);
      auto sum = torch::ones({1000}, on_gpu(me));
      world.all_reduce(sum).wait();
      EXPECT_EQ(sum.sum().item<float>(), 2000) << "the receive held up a collective";
      world.send(torch::full({300'000}, me.rank + round, on_gpu(me)), peer, round).wait();
      early.wait();
      EXPECT_EQ(got.max().item<float>(), peer + round);
      EXPECT_EQ(got.min().item<float>(), peer + round);
    }
  });
}

TEST(Nccl, SplitsInEveryWayAndUsesTheParts) {
  NEEDS_NCCL();
  run_ranks(4, [](const Rank& me) {
    const auto world = join(me);
    const auto before = world.split("before", me.rank % 2, -me.rank);  // without ncclCommSplit
    auto x = torch::full({8}, me.rank + 1.0, on_gpu(me));
    world.all_reduce(x).wait();
    const auto after = world.split("after", me.rank / 2, -me.rank);  // with it
    const auto lonely = world.split("lonely", me.rank == 3 ? 1 : 0, 0);
    for (const auto& group : {before, after, lonely}) {
      auto y = torch::full({1000}, 1.0, on_gpu(me));
      group.all_reduce(y).wait();
      EXPECT_EQ(y.sum().item<float>(), 1000 * group.size()) << group.name();
      auto z = torch::full({10}, group.rank(), on_gpu(me));
      group.broadcast(z, group.size() - 1).wait();
      EXPECT_EQ(z.sum().item<float>(), 10 * (group.size() - 1)) << group.name();
    }
  });
}

TEST(Nccl, MemoryThatNcclHasRegisteredIsZeroedAndReduces) {
  NEEDS_NCCL();
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    for (int round = 0; round < 3; ++round) {
      auto x = world.allocate({1 << 20}, on_gpu(me));
      EXPECT_TRUE(x.is_cuda());
      EXPECT_EQ(x.abs().sum().item<float>(), 0);
      x.fill_(me.rank + 1.0);
      world.all_reduce(x).wait();
      EXPECT_EQ(x.min().item<float>(), 3);
    }
  });
}

/// The survivors are blocked in CUDA, in a kernel that waits for the dead rank: it must end.
TEST(Nccl, ADeathEndsTheKernelsThatWaitForTheDead) {
  NEEDS_NCCL();
  for (const int signal : {SIGKILL, SIGSTOP}) {
    SCOPED_TRACE(signal);
    RunOptions options{.deadline = 60s};
    (signal == SIGKILL ? options.dies : options.stopped) = {1};
    run_ranks(
        3,
        [&](const Rank& me) {
          const auto world = join(me);
          auto x = torch::ones({1000}, on_gpu(me));
          world.all_reduce(x).wait();
          (void)x.sum().item<float>();
          if (me.rank == 1) ::kill(::getpid(), signal);
          const auto began = std::chrono::steady_clock::now();
          const std::string sentence = sentence_of<CommError>([&] {
            for (;;) {
              auto work = world.all_reduce(x);
              work.wait();
              (void)x.sum().cpu();  // the host waits for the GPU
            }
          });
          EXPECT_THAT(sentence,
                      AllOf(HasSubstr("all_reduce [1000] float32"), HasSubstr("rank 1 (host")));
          EXPECT_LT(std::chrono::steady_clock::now() - began, 4s);
        },
        options);
  }
}

TEST(Nccl, RanksThatMeanDifferentOpsLearnIt) {
  NEEDS_NCCL();
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    auto x = torch::ones({1000 + me.rank}, on_gpu(me));
    EXPECT_THAT(
        sentence_of<CommError>([&] {
          world.all_reduce(x).synchronize();
          world.barrier();
        }),
        AllOf(HasSubstr("rank 0: all_reduce [1000]"), HasSubstr("rank 1: all_reduce [1001]")));
  });
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    auto x = me.rank == 0 ? torch::ones({8}) : torch::ones({8}, on_gpu(me));
    EXPECT_THAT(sentence_of<CommError>([&] {
                  world.all_reduce(x).synchronize();
                  world.barrier();
                }),
                HasSubstr("one has its tensors on a GPU"));
  });
}

TEST(Nccl, TagsOutOfOrderAreRefused) {
  NEEDS_NCCL();
  run_ranks(2, [](const Rank& me) {
    const auto world = join(me);
    auto a = torch::ones({10}, on_gpu(me)), b = torch::ones({10}, on_gpu(me));
    EXPECT_THAT(sentence_of<CommError>([&] {
                  if (me.rank == 0) {
                    auto first = world.send(a, 1, 1), second = world.send(b, 1, 2);
                    second.synchronize();
                  } else {
                    auto first = world.recv(a, 0, 2), second = world.recv(b, 0, 1);
                    second.synchronize();
                  }
                  world.barrier();
                }),
                HasSubstr("receive in the order of the sends"));
  });
}

}  // namespace
}  // namespace trireme::test
