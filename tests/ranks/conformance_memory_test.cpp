// Where the data lies: views, empty tensors, registered memory in all its uses.
#include <fstream>

#include "support/backends.h"
#include "support/reference.h"
#include "support/sanitized.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using comm::Rows;
using comm::Work;
using core::ReduceOp;

ON_EVERY_BACKEND_AND_GPUS(Memory);

/// Sum over the ranks 0 ... size - 1 of marked(rank + shift).
at::Tensor sum_of_shape(int size, at::IntArrayRef shape, int shift = 0) {
  at::Tensor sum = marked(shift, shape);
  for (int rank = 1; rank < size; ++rank) sum = sum + marked(rank + shift, shape);
  return sum;
}

TEST_P(Memory, ScalarsAndEmptyTensorsAreTensorsToo) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const int n = world.size(), me = world.rank();
      at::Tensor scalar = at::full({}, me + 1, at::kDouble);
      world.all_reduce(scalar).wait();
      EXPECT_EQ(scalar.item().toInt(), n * (n + 1) / 2);
      scalar = at::full({}, me, at::kLong);
      world.broadcast(scalar, n - 1).wait();
      EXPECT_EQ(scalar.item().toInt(), n - 1);
      if (n > 1) {
        at::Tensor got = at::zeros({}, at::kInt);
        Work receive = world.recv(got, (me + n - 1) % n);
        world.send(at::full({}, me, at::kInt), (me + 1) % n).wait();
        receive.wait();
        EXPECT_EQ(got.item().toInt(), (me + n - 1) % n);
      }
      for (const std::vector<int64_t>& shape :
           std::vector<std::vector<int64_t>>{{0}, {0, 3}, {4 * n, 0}}) {
        at::Tensor nothing = at::zeros(shape),
                   part = at::zeros({shape[0] / n, shape.size() > 1 ? shape[1] : 0});
        world.all_reduce(nothing).wait();
        world.broadcast(nothing, 0).wait();
        world.reduce(nothing, 0).wait();
        world.all_gather(nothing, part).wait();
        world.reduce_scatter(part, nothing).wait();
        world.all_to_all(nothing, nothing.clone()).wait();
        world.gather(nothing, part, n - 1).wait();
        world.scatter(part, nothing, n - 1).wait();
        EXPECT_EQ(nothing.sizes(), at::IntArrayRef(shape));
      }
      world.barrier();
    });
  }
}

TEST_P(Memory, ViewsIntoALargerStorageChangeNothingAroundThem) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    for (const int64_t count : {1, 13, 5'000, 200'003}) {
      for (const int64_t offset : {0, 1, 3, 17}) {
        at::Tensor storage = at::full({offset + count + 29}, -5, at::kFloat);
        at::Tensor view = storage.slice(0, offset, offset + count);
        view.copy_(marked(world.rank(), {count}));
        world.all_reduce(view).wait();
        ASSERT_TRUE(same_bits(view, sum_of_shape(3, {count})));
        EXPECT_TRUE(at::all(storage.slice(0, 0, offset) == -5).item().toBool());
        EXPECT_TRUE(at::all(storage.slice(0, offset + count) == -5).item().toBool());
      }
    }
    at::Tensor bytes = at::zeros({9'001}, at::kByte);  // odd addresses
    at::Tensor odd = bytes.slice(0, 1, 8'002);
    odd.copy_(marked(world.rank(), {8'001}, at::kByte));
    world.broadcast(odd, 2).wait();
    EXPECT_TRUE(same_bits(odd, marked(2, {8'001}, at::kByte)));
    EXPECT_EQ(bytes[0].item().toInt() + bytes[8'002].item().toInt(), 0);
  });
}

TEST_P(Memory, RegisteredMemoryIsZeroedHasTheShapeAskedForAndReducesInPlace) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      for (const auto dtype : kDTypes) {
        at::Tensor data = world.allocate({7, 11}, dtype);
        ASSERT_EQ(data.sizes(), at::IntArrayRef({7, 11}));
        ASSERT_EQ(data.scalar_type(), dtype);
        ASSERT_EQ(at::count_nonzero(data).item().toLong(), 0);
      }
      const Draws draws(world.size(), 300'001);
      for (const int64_t count : {0, 1, 700, 5'000, 40'000, 300'001}) {
        at::Tensor data = world.allocate({count});
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max}) {
          data.copy_(draws.of(world.rank(), count, at::kFloat));
          world.all_reduce(data, op).wait();
          ASSERT_TRUE(same_sum(world, data, reduced(draws.of_all(count, at::kFloat), op), op))
              << count << " " << to_string(op);
        }
      }
    });
  }
}

TEST_P(Memory, EveryCollectiveWorksOnRegisteredMemory) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    const int me = world.rank(), n = world.size();
    for (const int64_t rows : {4, 30'000, 200'000}) {
      at::Tensor whole = world.allocate({n * rows}), part = world.allocate({rows});
      part.copy_(marked(me, {rows}));
      world.all_gather(whole, part).wait();
      for (int rank = 0; rank < n; ++rank)
        ASSERT_TRUE(
            same_bits(whole.slice(0, rank * rows, (rank + 1) * rows), marked(rank, {rows})));
      whole.copy_(marked(me, {n * rows}));
      world.reduce_scatter(part, whole).wait();
      ASSERT_TRUE(
          same_bits(part, sum_of_shape(n, {n * rows}).slice(0, me * rows, me * rows + rows)));
      world.broadcast(whole, 1).wait();
      ASSERT_TRUE(same_bits(whole, marked(1, {n * rows})));
      at::Tensor other = world.allocate({n * rows});
      whole.copy_(marked(10 * me, {n * rows}));
      world.all_to_all(other, whole).wait();
      for (int rank = 0; rank < n; ++rank)
        ASSERT_TRUE(same_bits(other.slice(0, rank * rows, (rank + 1) * rows),
                              marked(10 * rank, {n * rows}).slice(0, me * rows, me * rows + rows)));
      part.copy_(marked(me, {rows}));
      world.gather(other, part, 2).wait();
      if (me == 2) {
        ASSERT_TRUE(same_bits(other.slice(0, rows, 2 * rows), marked(1, {rows})));
      }
      world.scatter(part, whole, 0).wait();
      ASSERT_TRUE(same_bits(part, marked(0, {n * rows}).slice(0, me * rows, me * rows + rows)));
      whole.copy_(marked(me, {n * rows}));
      world.reduce(whole, 1).wait();
      ASSERT_TRUE(same_bits(whole, me == 1 ? sum_of_shape(n, {n * rows}) : marked(me, {n * rows})));
      Work receive = world.recv(part, (me + 1) % n);
      world.send(whole.slice(0, 0, rows), (me + n - 1) % n).wait();
      receive.wait();
    }
  });
}

TEST_P(Memory, ViewsOfRegisteredMemoryAndMixturesWithPrivateMemoryReduceAlike) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    const int me = world.rank();
    at::Tensor shared = world.allocate({500'000}), own = at::zeros({500'000});
    for (const int64_t count : {10, 6'000, 300'000}) {
      // Each rank's view begins elsewhere; then only some ranks use registered memory at all.
      for (int mixture = 0; mixture < 8; ++mixture) {
        const bool registered = (mixture >> me & 1) != 0;
        at::Tensor view = (registered ? shared : own).slice(0, 100 * me + 1, 100 * me + 1 + count);
        (registered ? shared : own).fill_(-7);
        view.copy_(marked(me, {count}));
        world.all_reduce(view).wait();
        ASSERT_TRUE(same_bits(view, sum_of_shape(3, {count})))
            << "mixture " << mixture << " of " << count;
        ASSERT_EQ((registered ? shared : own)[100 * me].item().toInt(), -7);
        ASSERT_EQ((registered ? shared : own)[100 * me + 1 + count].item().toInt(), -7);
        view.copy_(marked(me, {count}));
        world.broadcast(view, mixture % 3).wait();
        ASSERT_TRUE(same_bits(view, marked(mixture % 3, {count}))) << "mixture " << mixture;
        at::Tensor all = at::zeros({3 * count});
        world.all_gather(all, view.copy_(marked(me, {count}))).wait();
        ASSERT_TRUE(same_bits(all.slice(0, count, 2 * count), marked(1, {count})))
            << "mixture " << mixture;
        world.barrier();  // the others may still read the memory that the next round fills
      }
    }
  });
}

TEST_P(Memory, SubgroupsUseTheWorldsRegisteredMemoryAndTheWorldASubgroups) {
  run_world(GetParam(), 4, [](const Communicator& world) {
    const int me = world.rank();
    const Communicator half = world.split("half", me / 2, me);
    at::Tensor of_world = world.allocate({100'000}), of_half = half.allocate({100'000});
    for (const at::Tensor& data : {of_world, of_half}) {
      data.copy_(marked(me, {100'000}));
      half.all_reduce(data).wait();
      ASSERT_TRUE(same_bits(data, sum_of_shape(2, {100'000}, me / 2 * 2)));
      data.copy_(marked(me, {100'000}));
      world.all_reduce(data).wait();  // the subgroup's memory is not mapped by the other half
      ASSERT_TRUE(same_bits(data, sum_of_shape(4, {100'000})));
    }
  });
}

TEST_P(Memory, RanksMayAllocateDifferentShapes) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    const int me = world.rank();
    const Rows rows = {5'000, 0, 70'001};
    at::Tensor part = world.allocate({rows[static_cast<std::size_t>(me)], 2}, at::kDouble);
    part.copy_(marked(me, part.sizes(), at::kDouble));
    at::Tensor all = at::zeros({75'001, 2}, at::kDouble);
    world.all_gather(all, part, rows).wait();
    EXPECT_TRUE(same_bits(all.slice(0, 5'000), marked(2, {70'001, 2}, at::kDouble)));
    EXPECT_TRUE(same_bits(all.slice(0, 0, 5'000), marked(0, {5'000, 2}, at::kDouble)));
  });
}

TEST_P(Memory, MemoryThatWasLetGoIsZeroedAgainAndNotMixedUpWithWhatIsInUse) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    std::vector<at::Tensor> kept(8);
    for (int i = 0; i < 90; ++i) {
      // The ranks let go of different ones at different times.
      at::Tensor& slot = kept[static_cast<std::size_t>((i * (world.rank() + 1)) % 8)];
      slot.reset();
      at::Tensor data = world.allocate({1'000 + i % 5 * 4'000}, at::kLong);
      ASSERT_EQ(at::count_nonzero(data).item().toLong(), 0) << "allocation " << i;
      data.fill_(i * 10 + world.rank());
      world.all_reduce(data).wait();
      ASSERT_EQ(data[0].item().toLong(), i * 20 + 1) << "allocation " << i;
      slot = data;
      slot.fill_(i);
      for (const at::Tensor& other : kept) {
        if (other.defined()) {
          ASSERT_EQ(other.min().item().toLong(), other.max().item().toLong())
              << "somebody wrote into memory in use";
        }
      }
    }
  });
}

/// Of this process, in bytes: private and shared pages that it has touched.
int64_t resident_bytes() {
  int64_t pages = 0, ignored = 0;
  std::ifstream("/proc/self/statm") >> ignored >> pages;
  return pages * 4096;
}

TEST_P(Memory, MemoryThatWasLetGoByAllRanksGoesBackToTheSystem) {
  NOT_ON_GPUS("has memory of its own, of the host and of the GPU");
  run_world(GetParam(), 2, [](const Communicator& world) {
    world.barrier();
    const int64_t before = resident_bytes();
    // Each is larger than all that were before it, so that none can be used again.
    for (int64_t mega = 1; mega <= 40; ++mega) {
      at::Tensor data = world.allocate({mega << 20}, at::kByte);
      data.fill_(1);
      world.all_reduce(data).wait();
    }
    world.barrier();
    if (!test::kSanitized) {
      EXPECT_LT(resident_bytes() - before, 300 << 20)
          << "820 MiB were allocated, at most 40 at a time and rank";
    }
    world.barrier();
  });
}

TEST_P(Memory, RegisteredMemoryOutlivesItsWorld) {
  run_worlds(GetParam(), 2, [](int rank, const Join& join) {
    at::Tensor data;
    {
      const Communicator world = join("short");
      data = world.allocate({10'000});
      data.copy_(marked(rank, {10'000}));
      world.barrier();
    }
    data.add_(1);
    EXPECT_TRUE(same_bits(data, marked(rank, {10'000}) + 1));
  });
}

}  // namespace
}  // namespace trireme::test
