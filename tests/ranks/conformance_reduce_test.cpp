// all_reduce and reduce: the same numbers as one process that adds in the order of ranks.
#include <limits>

#include "support/backends.h"
#include "support/reference.h"

namespace trireme::test {
namespace {

using comm::Algorithm;
using comm::Communicator;
using core::ReduceOp;

constexpr int64_t kMostElems = 300'001;
const std::vector<int64_t> kCounts = {0, 1, 7, 1000, 40'000, kMostElems};

ON_EVERY_BACKEND_AND_GPUS(AllReduce);

void sweep_all_reduce(const Communicator& world, Algorithm algorithm) {
  const Draws draws(world.size(), kMostElems);
  for (const auto dtype : kDTypes) {
    for (const int64_t count : kCounts) {
      const auto all = draws.of_all(count, dtype);
      for (const ReduceOp op : kReduceOps) {
        SCOPED_TRACE(::testing::Message() << world.size() << " ranks, " << dtype << " "
                                          << to_string(op) << " of " << count);
        at::Tensor data = all[static_cast<std::size_t>(world.rank())].clone();
        world.all_reduce(data, op, algorithm).wait();
        ASSERT_TRUE(same_sum(world, data, reduced(all, op), op));
      }
    }
  }
}

TEST_P(AllReduce, EqualsTheReductionInRankOrderBitForBit) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size,
              [](const Communicator& world) { sweep_all_reduce(world, Algorithm::Auto); });
  }
}

TEST_P(AllReduce, OneShotAndDirectByNameGiveTheBitsOfRankOrderToo) {
  for (const int size : {2, 3}) {
    run_world(GetParam(), size, [](const Communicator& world) {
      sweep_all_reduce(world, Algorithm::OneShot);
      sweep_all_reduce(world, Algorithm::Direct);
    });
  }
}

/// They add pairwise, in another order: exact for small whole numbers, near for the rest, and the
/// same bits everywhere.
TEST_P(AllReduce, RingAndTreeAreExactOnWholeNumbersAndAlikeOnAllRanks) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const auto me = static_cast<std::size_t>(world.rank());
      const Draws draws(world.size(), kMostElems);
      for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::Tree}) {
        for (const auto dtype : kDTypes) {
          for (const int64_t count :
               {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{40'000}}) {
            for (const ReduceOp op : kReduceOps) {
              SCOPED_TRACE(::testing::Message()
                           << world.size() << " ranks, " << to_string(algorithm) << " " << dtype
                           << " " << to_string(op) << " of " << count);
              // A mean of 3 is not exact in 16 bits, and a product of five 6s is not either.
              const bool exact = at::isIntegralType(dtype, false) || dtype == at::kDouble ||
                                 dtype == at::kFloat ||
                                 (op != ReduceOp::Mean && op != ReduceOp::Product);
              const auto wholes = draws.wholes(count, dtype);
              at::Tensor data = wholes[me].clone();
              world.all_reduce(data, op, algorithm).wait();
              const at::Tensor expected = reduced(wholes, op);
              const bool near =
                  at::allclose(data.to(at::kDouble), expected.to(at::kDouble), 0.02, 0.02);
              ASSERT_TRUE(exact ? same_sum(world, data, expected, op)
                                : ::testing::AssertionResult(near));
            }
          }
        }
        at::Tensor reals = draws.of(world.rank(), kMostElems, at::kFloat);
        world.all_reduce(reals, ReduceOp::Sum, algorithm).wait();
        EXPECT_TRUE(at::allclose(
            reals, reduced(draws.of_all(kMostElems, at::kFloat), ReduceOp::Sum), 1e-5, 1e-6));
        EXPECT_TRUE(same_everywhere(world, reals)) << to_string(algorithm);
      }
    });
  }
}

TEST_P(AllReduce, GivesTheSameBitsAgainAndAgainOnAllRanks) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    const Draws draws(world.size(), 100'000);
    for (const int64_t count : {11, 5'000, 100'000}) {
      at::Tensor first;
      for (int round = 0; round < 5; ++round) {
        at::Tensor data = draws.of(world.rank(), count, at::kFloat);
        world.all_reduce(data).wait();
        if (round == 0) first = data;
        EXPECT_TRUE(same_bits(data, first)) << "round " << round;
      }
      EXPECT_TRUE(same_everywhere(world, first));
    }
  });
}

TEST_P(AllReduce, MaxAndMinHandOnANaNAndInfinitiesAsTorchDoes) {
  NOT_ON_GPUS("has its own rules for NaN");
  run_world(GetParam(), 3, [](const Communicator& world) {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                    kInf = std::numeric_limits<float>::infinity();
    const auto special = [&](int rank) {
      at::Tensor data = marked(rank, {64});
      if (rank == 1) data[3] = kNaN;
      if (rank == 2) data[5] = kInf;
      if (rank == 0) data[9] = -kInf;
      return data;
    };
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const ReduceOp op : {ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum}) {
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < 3; ++rank) all.push_back(special(rank).to(dtype));
        at::Tensor data = all[static_cast<std::size_t>(world.rank())].clone();
        world.all_reduce(data, op).wait();
        EXPECT_TRUE(at::allclose(data.to(at::kDouble), reduced(all, op).to(at::kDouble), 0, 0,
                                 /*equal_nan=*/true))
            << dtype << " " << to_string(op);
      }
    }
  });
}

ON_EVERY_BACKEND_AND_GPUS(Reduce);

TEST_P(Reduce, PutsTheResultAtTheRootAndLeavesTheOthersDataAlone) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const auto me = static_cast<std::size_t>(world.rank());
      const Draws draws(world.size(), kMostElems);
      for (int root = 0; root < world.size(); ++root) {
        for (const int64_t count : kCounts) {
          for (const auto dtype : {at::kFloat, at::kBFloat16, at::kByte}) {
            for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max}) {
              SCOPED_TRACE(::testing::Message()
                           << "root " << root << " of " << world.size() << ", " << dtype << " "
                           << to_string(op) << " of " << count);
              const auto all = draws.of_all(count, dtype);
              at::Tensor data = all[me].clone();
              world.reduce(data, root, op).wait();
              ASSERT_TRUE(world.rank() == root ? same_sum(world, data, reduced(all, op), op)
                                               : same_bits(data, all[me]));
            }
          }
          const auto wholes = draws.wholes(count, at::kFloat);
          at::Tensor data = wholes[me].clone();
          world.reduce(data, root, ReduceOp::Sum, Algorithm::Tree).wait();
          ASSERT_TRUE(
              same_bits(data, world.rank() == root ? reduced(wholes, ReduceOp::Sum) : wholes[me]))
              << "by tree, root " << root;
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::test
