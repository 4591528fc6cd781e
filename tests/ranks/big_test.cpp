// Tensors over 2 GiB: a 32-bit count anywhere on the way would show.
#include "support/backends.h"
#include "support/reference.h"

namespace trireme::test {
namespace {

using comm::Communicator;

constexpr int64_t kBigBytes = (int64_t{2} << 30) + 17;

BackendUnderTest backend_named(const std::string& name) {
  for (const auto& backend : all_backends()) {
    if (backend.name == name) return backend;
  }
  throw std::invalid_argument(name);
}

/// The beginning, both sides of 1 and 2 GiB, and the very end.
std::vector<std::pair<int64_t, int64_t>> looked_at(int64_t bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges = {{0, 5'000}, {bytes - 5'000, bytes}};
  for (const int64_t at : {int64_t{1} << 30, int64_t{2} << 30, bytes / 2})
    ranges.emplace_back(at - 2'000, std::min(at + 2'000, bytes));
  return ranges;
}

/// Different by rank and by place, for the places that are looked at.
void mark(at::Tensor& data, int rank) {
  for (const auto& [begin, end] : looked_at(data.numel()))
    data.slice(0, begin, end).copy_(at::arange(begin, end, at::kLong).remainder(97) + rank);
}

TEST(Big, AllReduceOfMoreThanTwoGiBOverSharedMemory) {
  run_world(backend_named("shm"), 2,
            [](const Communicator& world) {
              at::Tensor data = at::full({kBigBytes}, world.rank() + 3, at::kByte);
              mark(data, world.rank());
              world.all_reduce(data).wait();
              EXPECT_EQ(data[kBigBytes / 3].item().toInt(), 7);
              EXPECT_EQ(data[kBigBytes / 3 * 2].item().toInt(), 7);
              for (const auto& [begin, end] : looked_at(kBigBytes))
                EXPECT_TRUE(same_bits(
                    data.slice(0, begin, end),
                    (at::arange(begin, end, at::kLong).remainder(97) * 2 + 1).to(at::kByte)))
                    << begin;
            },
            {.deadline = std::chrono::seconds(60), .op_timeout = std::chrono::seconds(50)});
}

TEST(Big, AllGatherOfMoreThanTwoGiBBetweenThreads) {
  run_world(
      backend_named("local"), 2,
      [](const Communicator& world) {
        constexpr int64_t kFirst = (int64_t{1} << 30) + 11;
        const comm::Rows rows = {kFirst, kBigBytes - kFirst};
        const int64_t mine = rows[static_cast<std::size_t>(world.rank())];
        at::Tensor part = at::full({mine}, world.rank() + 3, at::kByte),
                   all = at::zeros({kBigBytes}, at::kByte);
        part.slice(0, mine - 100).copy_(marked(world.rank(), {100}, at::kByte));
        world.all_gather(all, part, rows).wait();
        EXPECT_TRUE(same_bits(all.slice(0, kFirst - 100, kFirst), marked(0, {100}, at::kByte)));
        EXPECT_TRUE(same_bits(all.slice(0, kBigBytes - 100), marked(1, {100}, at::kByte)));
        EXPECT_EQ(all[0].item().toInt(), 3);
        EXPECT_EQ(all[kFirst].item().toInt(), 4);
      },
      {.deadline = std::chrono::seconds(60), .op_timeout = std::chrono::seconds(50)});
}

TEST(Big, AMessageOfMoreThanTwoGiBOverSockets) {
  run_world(
      backend_named("tcp"), 2,
      [](const Communicator& world) {
        at::Tensor data = at::full({kBigBytes}, world.rank() + 3, at::kByte);
        if (world.rank() == 0) {
          mark(data, 0);
          world.send(data, 1).wait();
          world.barrier();
          return;
        }
        world.recv(data, 0).wait();
        EXPECT_EQ(data[kBigBytes / 3].item().toInt(), 3);
        for (const auto& [begin, end] : looked_at(kBigBytes))
          EXPECT_TRUE(same_bits(data.slice(0, begin, end),
                                at::arange(begin, end, at::kLong).remainder(97).to(at::kByte)))
              << begin;
        world.barrier();
      },
      {.deadline = std::chrono::seconds(60), .op_timeout = std::chrono::seconds(50)});
}

}  // namespace
}  // namespace trireme::test
