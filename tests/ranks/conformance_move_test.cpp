// The collectives that only move data: every byte must end where it belongs, and no other.
#include <numeric>

#include "support/backends.h"
#include "support/reference.h"

namespace trireme::test {
namespace {

using comm::Algorithm;
using comm::Communicator;
using comm::Rows;
using core::ReduceOp;

ON_EVERY_BACKEND_AND_GPUS(Move);

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

int64_t total(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

/// Every other rank has nothing; the others have r * step + 1 rows.
Rows gappy(int size, int64_t step, int first_empty) {
  Rows rows;
  for (int rank = 0; rank < size; ++rank)
    rows.push_back(rank % 2 == first_empty ? 0 : rank * step + 1);
  return rows;
}

/// The ways that `size` ranks may share rows: evenly little and much, unevenly with empty ranks,
/// all with one rank, none at all.
std::vector<Rows> ways_to_share(int size) {
  std::vector<Rows> ways = {Rows(index(size), 1), Rows(index(size), 5), Rows(index(size), 20'000),
                            gappy(size, 3, 0),    gappy(size, 3, 1),    gappy(size, 9'001, 1),
                            Rows(index(size), 0)};
  Rows one(index(size), 0);
  one.back() = 12;
  ways.push_back(one);
  return ways;
}

std::vector<at::Tensor> parts_of_all(const Rows& rows, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < rows.size(); ++rank)
    parts.push_back(marked(static_cast<int>(rank) + 1, {rows[rank], 3}, dtype));
  return parts;
}

TEST_P(Move, BroadcastFromEveryRootInEveryDtype) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      for (int root = 0; root < world.size(); ++root) {
        for (const int64_t count : {0, 1, 7, 1000, 40'000, 300'001}) {
          for (const auto dtype :
               {at::kFloat, at::kBool, at::kShort, at::kComplexDouble, at::kByte}) {
            for (const Algorithm algorithm :
                 {Algorithm::Auto, Algorithm::Direct, Algorithm::Tree}) {
              at::Tensor data = marked(world.rank(), {count}, dtype);
              world.broadcast(data, root, algorithm).wait();
              ASSERT_TRUE(same_bits(data, marked(root, {count}, dtype)))
                  << "root " << root << " of " << world.size() << ", " << dtype << " by "
                  << to_string(algorithm);
            }
          }
        }
      }
    });
  }
}

TEST_P(Move, AllGatherPutsEveryRanksRowsInItsPlace) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      for (const Rows& rows : ways_to_share(world.size())) {
        for (const auto dtype : {at::kFloat, at::kByte}) {
          for (const Algorithm algorithm :
               {Algorithm::Auto, Algorithm::Direct, Algorithm::Ring, Algorithm::Tree}) {
            const auto parts = parts_of_all(rows, dtype);
            at::Tensor out = at::full({total(rows), 3}, 99, dtype);
            const at::Tensor in = parts[index(world.rank())].clone();
            world.all_gather(out, in, rows, algorithm).wait();
            ASSERT_TRUE(same_bits(out, at::cat(parts)))
                << at::IntArrayRef(rows) << " by " << to_string(algorithm);
            ASSERT_TRUE(same_bits(in, parts[index(world.rank())])) << "the input was changed";
          }
        }
      }
      // Even parts need no rows, and a part may already lie in its place.
      at::Tensor out = at::zeros({world.size() * 4, 2});
      at::Tensor mine = out.slice(0, world.rank() * 4, world.rank() * 4 + 4);
      mine.copy_(marked(world.rank(), {4, 2}));
      world.all_gather(out, mine).wait();
      for (int rank = 0; rank < world.size(); ++rank)
        EXPECT_TRUE(same_bits(out.slice(0, rank * 4, rank * 4 + 4), marked(rank, {4, 2})));
    });
  }
}

TEST_P(Move, ReduceScatterGivesEveryRankItsRowsOfTheSumInRankOrder) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const int me = world.rank();
      const Draws draws(world.size(), 3 * 100'000);
      for (const Rows& rows : ways_to_share(world.size())) {
        const int64_t begin = std::accumulate(rows.begin(), rows.begin() + me, int64_t{0});
        for (const auto dtype : {at::kFloat, at::kHalf, at::kByte}) {
          for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max}) {
            const auto all = draws.of_all(total(rows) * 3, dtype);
            const at::Tensor in = all[index(me)].view({-1, 3}).clone();
            at::Tensor out = at::full({rows[index(me)], 3}, 99, dtype);
            world.reduce_scatter(out, in, op, rows).wait();
            const at::Tensor whole = reduced(all, op).view({-1, 3});
            ASSERT_TRUE(same_sum(world, out, whole.slice(0, begin, begin + rows[index(me)]), op))
                << at::IntArrayRef(rows) << " " << dtype << " " << to_string(op);
            ASSERT_TRUE(same_bits(in, all[index(me)].view({-1, 3}))) << "the input was changed";
          }
        }
        const auto wholes = draws.wholes(total(rows) * 3, at::kFloat);
        at::Tensor out = at::full({rows[index(me)], 3}, 99, at::kFloat);
        world
            .reduce_scatter(out, wholes[index(me)].view({-1, 3}).clone(), ReduceOp::Mean, rows,
                            Algorithm::Ring)
            .wait();
        ASSERT_TRUE(same_bits(
            out,
            reduced(wholes, ReduceOp::Mean).view({-1, 3}).slice(0, begin, begin + rows[index(me)])))
            << at::IntArrayRef(rows) << " by ring";
      }
    });
  }
}

TEST_P(Move, ListsOfTensorsOfManyDtypesAndShapesGoTogether) {
  for (const int size : {2, 3}) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const int me = world.rank(), n = world.size();
      std::vector<at::Tensor> outs, ins, expected;
      std::vector<Rows> rows;
      for (int i = 0; i < 12; ++i) {
        const auto dtype = kDTypes[index(i) % kDTypes.size()];
        rows.push_back(i % 3 == 0 ? Rows(index(n), i * 200) : gappy(n, i * 11, i % 2));
        const auto parts = parts_of_all(rows.back(), dtype);
        ins.push_back(parts[index(me)].clone());
        outs.push_back(at::zeros({total(rows.back()), 3}, dtype));
        expected.push_back(at::cat(parts));
      }
      world.all_gather(outs, ins, rows).wait();
      for (std::size_t i = 0; i < outs.size(); ++i)
        EXPECT_TRUE(same_bits(outs[i], expected[i])) << "tensor " << i;

      const Draws draws(n, 30'000);
      std::vector<at::Tensor> scattered, whole, sums;
      for (int i = 0; i < 6; ++i) {
        const int64_t each = i * 700;
        const auto all = draws.of_all(each * n, at::kFloat);
        whole.push_back(all[index(me)].clone());
        scattered.push_back(at::zeros({each}));
        sums.push_back(reduced(all, ReduceOp::Mean).slice(0, me * each, me * each + each));
      }
      world.reduce_scatter(scattered, whole, ReduceOp::Mean).wait();
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_TRUE(same_sum(world, scattered[i], sums[i], ReduceOp::Mean)) << "tensor " << i;
      world.all_gather(std::vector<at::Tensor>{}, std::vector<at::Tensor>{})
          .wait();  // nothing is fine too
    });
  }
}

TEST_P(Move, AllToAllSendsEachRankItsRowsEvenUnevenAndNone) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const int me = world.rank(), n = world.size();
      // Rank a sends b this many rows.
      using Count = std::function<int64_t(int a, int b)>;
      const std::vector<Count> counts = {[](int, int) { return 2; },
                                         [](int a, int b) { return (a + 2 * b) % 3; },
                                         [](int a, int b) { return a == b ? 4 : 0; },
                                         [](int a, int) { return a == 0 ? 6 : 0; },
                                         [n](int, int b) { return b == n - 1 ? 5 : 0; },
                                         [](int a, int b) { return (a * 7 + b * 3) % 4 * 9'000; },
                                         [](int, int) { return 0; }};
      for (std::size_t c = 0; c < counts.size(); ++c) {
        for (const auto dtype : {at::kFloat, at::kByte}) {
          const auto sent = [&](int a, int b) {
            return marked(10 * a + b, {counts[c](a, b), 2}, dtype);
          };
          Rows in_rows, out_rows;
          std::vector<at::Tensor> in, expected;
          for (int peer = 0; peer < n; ++peer) {
            in_rows.push_back(counts[c](me, peer));
            out_rows.push_back(counts[c](peer, me));
            in.push_back(sent(me, peer));
            expected.push_back(sent(peer, me));
          }
          at::Tensor out = at::full({total(out_rows), 2}, 99, dtype);
          world.all_to_all(out, at::cat(in), out_rows, in_rows).wait();
          ASSERT_TRUE(same_bits(out, at::cat(expected))) << "pattern " << c << " on " << n;
        }
      }
      at::Tensor even = at::zeros({n});
      world.all_to_all(even, marked(me, {n})).wait();
      for (int peer = 0; peer < n; ++peer) EXPECT_EQ(even[peer].item().toInt(), peer * 1000 + me);
    });
  }
}

TEST_P(Move, GatherAndScatterWorkAtEveryRoot) {
  for (const int size : GetParam().sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const int me = world.rank();
      for (int root = 0; root < world.size(); ++root) {
        for (const Rows& rows : ways_to_share(world.size())) {
          const auto parts = parts_of_all(rows, at::kFloat);
          at::Tensor whole = me == root ? at::full({total(rows), 3}, 99, at::kFloat) : at::Tensor{};
          world.gather(whole, parts[index(me)].clone(), root, rows).wait();
          if (me == root) {
            ASSERT_TRUE(same_bits(whole, at::cat(parts)))
                << "gather " << at::IntArrayRef(rows) << " at " << root;
          }

          at::Tensor part = at::full({rows[index(me)], 3}, 99, at::kFloat);
          world.scatter(part, me == root ? at::cat(parts) : at::Tensor{}, root, rows).wait();
          ASSERT_TRUE(same_bits(part, parts[index(me)]))
              << "scatter " << at::IntArrayRef(rows) << " from " << root;
        }
        at::Tensor whole = me == root ? at::zeros({world.size() * 2}, at::kLong) : at::Tensor{};
        world.gather(whole, marked(me, {2}, at::kLong), root).wait();
        if (me == root) {
          EXPECT_EQ(whole[world.size() * 2 - 1].item().toLong(), (world.size() - 1) * 1000 + 1);
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::test
