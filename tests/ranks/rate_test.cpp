// A limit on what a connection carries. Nothing but a lower bound of the time is asserted: that
// much must pass if the limit works, however slow the machine is.
#include <chrono>
#include <thread>

#include "support/reference.h"
#include "support/scratch.h"
#include "support/tcp_world.h"
#include "trireme/comm/communicator.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using Seconds = std::chrono::duration<double>;

/// Both ranks send 4 MB to each other at the same time; returns how long rank 0 took.
Seconds time_of_exchange(double rate_mbit) {
  const Scratch folder;
  Seconds took{};
  const auto body = [&](int rank) {
    const auto deadline = net::Clock::now() + std::chrono::seconds(60);
    const Communicator world("world", join_tcp({.file = folder.path() + "/meet",
                                                .rank = rank,
                                                .size = 2,
                                                .options = {.rate_mbit = rate_mbit}},
                                               deadline));
    // The first ten packets of a connection are not held back; on loopback they have 64 KiB each.
    const auto exchange = [&](int64_t elements) {
      const at::Tensor mine = marked(rank, {elements});
      at::Tensor theirs = at::zeros({elements});
      auto receiving = world.recv(theirs, 1 - rank);
      auto sending = world.send(mine, 1 - rank);
      receiving.wait();
      sending.wait();
      EXPECT_TRUE(same_bits(theirs, marked(1 - rank, {elements})));
    };
    exchange(500'000);
    world.barrier();
    const auto began = net::Clock::now();
    exchange(1'000'000);
    if (rank == 0) took = net::Clock::now() - began;
    world.barrier();
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
  return took;
}

/// 32 Mbit at 100 Mbit/s are 0.32 s. The kernel may have saved up credit while the connection was
/// idle: a fifth is left for that.
TEST(Rate, OfAConnectionIsLimitedInBothDirections) {
  const Seconds limited = time_of_exchange(100);
  EXPECT_GE(limited.count(), 0.8 * 0.32);
  RecordProperty("limited_ms", static_cast<int>(limited.count() * 1000));
}

TEST(Rate, OfZeroIsNoLimit) {
  RecordProperty("free_ms", static_cast<int>(time_of_exchange(0).count() * 1000));
}

}  // namespace
}  // namespace trireme::test
