// Started operations: in what order they run, who finishes them, and what may happen meanwhile.
#include <thread>

#include "support/backends.h"
#include "support/reference.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using comm::Work;

ON_EVERY_BACKEND_AND_GPUS(Order);

at::Tensor sum_of(int size, int64_t count) {
  at::Tensor sum = marked(0, {count});
  for (int rank = 1; rank < size; ++rank) sum = sum + marked(rank, {count});
  return sum;
}

TEST_P(Order, ManyStartedBeforeAnyIsWaitedForAndWaitedForInReverse) {
  for (const int size : {2, 3}) {
    run_world(GetParam(), size, [](const Communicator& world) {
      std::vector<Work> works;
      std::vector<at::Tensor> data;
      for (int i = 0; i < 60; ++i) {
        data.push_back(marked(world.rank() + i, {i % 7 == 0 ? 200'000 : 1 + i * 50}));
        works.push_back(i % 5 == 4 ? world.broadcast(data.back(), i % world.size())
                                   : world.all_reduce(data.back()));
      }
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
      for (int i = 0; i < 60; ++i) {
        const at::Tensor& got = data[static_cast<std::size_t>(i)];
        const at::Tensor expected = i % 5 == 4 ? marked(i % world.size() + i, {got.numel()})
                                               : sum_of(world.size(), got.numel()) +
                                                     static_cast<double>(i) * 1000 * world.size();
        EXPECT_TRUE(same_bits(got, expected)) << "op " << i;
      }
    });
  }
}

TEST_P(Order, WorkThatNobodyWaitsForIsFinishedWhenItGoes) {
  NOT_ON_GPUS(
      "gets a copy of the tensor when an op starts, and one op here starts before the last ended");
  run_world(GetParam(), 3, [](const Communicator& world) {
    for (const int64_t count : {5, 20'000, 600'000}) {
      at::Tensor data = marked(world.rank(), {count});
      { const Work dropped = world.all_reduce(data); }
      EXPECT_TRUE(same_bits(data, sum_of(3, count)));
      (void)world.all_reduce(marked(world.rank(), {count}));  // even its tensor was a temporary
      Work overwritten = world.all_reduce(data);
      overwritten = world.broadcast(data, 0);
      overwritten.wait();
      overwritten.wait();  // twice does no harm
      EXPECT_TRUE(same_bits(data, sum_of(3, count) * 3));
    }
    world.barrier();
  });
}

TEST_P(Order, ALargeOneGoesOnWhileTheProgramComputes) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    constexpr int64_t kCount = 2 << 20;  // 8 MB of floats
    const at::Tensor left = at::rand({300, 300});
    for (int round = 0; round < 3; ++round) {
      at::Tensor data = marked(world.rank(), {kCount});
      Work work = world.all_reduce(data);
      at::Tensor busy = left;
      for (int i = 0; i < 30; ++i) busy = at::mm(busy, left) / 150;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (!work.done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      EXPECT_TRUE(work.done()) << "nothing moved while nobody waited";
      work.wait();
      EXPECT_TRUE(same_bits(data, sum_of(2, kCount)));
      EXPECT_TRUE(std::isfinite(busy.sum().item().toDouble()));
    }
  });
}

TEST_P(Order, SlowRanksAndFastRanksMeetInEveryCollective) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    for (int i = 0; i < 30; ++i) {
      // Another rank is late each time; the sleep makes it late, nothing depends on how long.
      if (i % 3 == world.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(3 + i));
      at::Tensor data = marked(world.rank(), {i * 997});
      world.all_reduce(data).wait();
      ASSERT_TRUE(same_bits(data, sum_of(3, i * 997)));
    }
  });
}

TEST_P(Order, NobodyLeavesABarrierBeforeAllHaveCome) {
  run_world(GetParam(), 4, [](const Communicator& world) {
    // One clock for all of them: the last to come must have come before the first one left.
    for (int round = 0; round < 20; ++round) {
      const auto before = std::chrono::steady_clock::now().time_since_epoch().count();
      if (round % 4 == world.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      world.barrier();
      const auto after = std::chrono::steady_clock::now().time_since_epoch().count();
      at::Tensor latest = at::tensor({before}, at::kLong),
                 earliest = at::tensor({after}, at::kLong);
      world.all_reduce(latest, core::ReduceOp::Max).wait();
      world.all_reduce(earliest, core::ReduceOp::Min).wait();
      EXPECT_LE(latest.item().toLong(), earliest.item().toLong()) << "round " << round;
    }
  });
}

TEST_P(Order, AThousandSmallOnesInARowStayInStep) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    at::Tensor data = at::zeros({4}, at::kLong);
    for (int i = 0; i < 1000; ++i) {
      data.fill_(world.rank() * i);
      world.all_reduce(data).wait();
      ASSERT_EQ(data[3].item().toLong(), 3 * i);
    }
  });
}

TEST_P(Order, DoneTurnsTrueWithoutAWaitForEverySize) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    for (const int64_t count : {1, 1000, 20'000, 500'000}) {
      at::Tensor data = marked(world.rank(), {count});
      Work work = world.all_reduce(data);
      world.barrier();  // waiting for anything steps everything
      work.synchronize();
      EXPECT_TRUE(work.done());
      EXPECT_TRUE(same_bits(data, sum_of(2, count)));
    }
    Work nothing;
    EXPECT_TRUE(nothing.done());
    nothing.wait();
  });
}

}  // namespace
}  // namespace trireme::test
