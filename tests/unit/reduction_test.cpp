#include "trireme/layout/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <numeric>

namespace trireme {
namespace {

constexpr int kMostRanks = 16;

void for_each_small_mesh(const std::function<void(const Degrees&)>& body) {
  for (int pipe = 1; pipe <= kMostRanks; ++pipe)
    for (int replica = 1; pipe * replica <= kMostRanks; ++replica)
      for (int shard = 1; pipe * replica * shard <= kMostRanks; ++shard)
        for (int context = 1; pipe * replica * shard * context <= kMostRanks; ++context)
          for (int tensor = 1; pipe * replica * shard * context * tensor <= kMostRanks; ++tensor)
            for (int expert = 1; expert <= replica * shard * context; ++expert)
              if (replica * shard * context % expert == 0)
                body({pipe, replica, shard, context, tensor, expert});
}

/// A kind of parameter, as a row of the table in the design.
struct Row {
  const char* name;
  Layout layout;
  Holders holders;
};

std::vector<Row> rows_for(const Degrees& mesh) {
  if (mesh.expert > 1)  // what expert does not cut does not know that there is one
    return {
        {"expert", Layout({24, 2}, {{Axis::Expert, 0}}), {0}},
        {"expert, cut over tensor", Layout({12, 8}, {{Axis::Expert, 0}, {Axis::Tensor, 1}}), {0}}};
  const int last = mesh.pipe - 1;
  std::vector<Row> rows = {
      {"dense", Layout({5, 4}), {0}},
      {"partial over tensor", Layout({19}, {}, {Axis::Tensor}), {last}},
      {"row", Layout({2, 9}, {{Axis::Tensor, 1}}), {last}},
      {"uneven sections", Layout({10, 2}, {{Axis::Tensor, 0, {{6}, {4}}}}), {0}},
      {"empty", Layout({0, 3}), {0}}};
  const std::vector<Section> heads = {{.size = 16, .copies = 0, .grain = 8, .fine = 1},
                                      {.size = 4, .copies = 0, .grain = 2},
                                      {.size = 4, .copies = 0, .grain = 2}};
  if (mesh.tensor % 2 == 0)  // two kv heads, of which each rank needs one
    rows.push_back({"copied kv heads", Layout({24, 2}, {{Axis::Tensor, 0, heads}}), {0}});
  if (mesh.pipe == 1) return rows;
  Holders every(static_cast<std::size_t>(mesh.pipe));
  std::iota(every.begin(), every.end(), 0);
  rows.push_back({"tied, cut over tensor", Layout({17}, {{Axis::Tensor, 0}}), {0, last}});
  rows.push_back({"tied on every stage", Layout({6}, {}, {Axis::Tensor}), every});
  if (mesh.tensor % 2 == 0)
    rows.push_back({"tied kv heads", Layout({24, 2}, {{Axis::Tensor, 0, heads}}), {0, last}});
  return rows;
}

std::vector<Policy> policies_for(const Degrees& mesh) {
  std::vector<Policy> all;
  for (const Sharding sharding :
       {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters})
    if (sharding == Sharding::None || mesh.shard > 1) all.push_back({.sharding = sharding});
  return all;
}

/// One parameter on one mesh under one policy: what every rank of its holders reduces and keeps.
struct Case {
  Degrees mesh;
  Row row;
  Policy policy;
  std::vector<Coord> coords;
  std::map<int, std::vector<Reduction>> of_rank = {};

  Case(const Degrees& degrees, Row of_row, const Policy& with)
      : mesh(degrees), row(std::move(of_row)), policy(with) {
    for (int rank = 0; rank < mesh.world(); ++rank) {
      coords.push_back(coord_of(rank, mesh));
      if (std::ranges::find(row.holders, coords.back().pipe) == row.holders.end()) continue;
      of_rank[rank] = reductions_of(row.layout, row.holders, mesh, coords.back(), policy);
    }
  }

  const std::vector<int>& ranks(const RankSet& set, int rank) const {
    auto& known = known_[{set, rank}];
    if (known.empty()) known = ranks_of(set, coords[static_cast<std::size_t>(rank)], mesh);
    return known;
  }
  int64_t numel() const { return Box{{}, row.layout.whole()}.numel(); }
  /// Ranks of a tensor axis that have all of the input compute the same gradient.
  bool same_on_tensor() const {
    return !row.layout.is_cut(Axis::Tensor) && row.layout.partial().empty();
  }
  std::string text() const {
    return std::string(row.name) + " on " + to_string(mesh) + ", expert " +
           std::to_string(mesh.expert) + ", sharding level " +
           std::to_string(static_cast<int>(policy.sharding));
  }

 private:
  mutable std::map<std::pair<RankSet, int>, std::vector<int>> known_;
};

/// The flat places in the whole of the elements of a box.
std::vector<int64_t> elements(const Reduction& one, const Layout& layout) {
  std::vector<int64_t> all;
  const Box& box = one.box.box;
  for (int64_t i = 0; i < box.numel(); ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (std::size_t dim = box.shape.size(); dim-- > 0;) {
      flat += (box.offset[dim] + rest % box.shape[dim]) * stride;
      rest /= box.shape[dim];
      stride *= layout.whole()[dim];
    }
    all.push_back(flat);
  }
  return all;
}

/// Norms count every element of a model once.
void check_counts(const Case& one) {
  std::vector<int> counted(static_cast<std::size_t>(one.numel()));
  for (const auto& [rank, reductions] : one.of_rank) {
    for (const Reduction& box : reductions) {
      if (!box.counts) continue;
      const auto all = elements(box, one.row.layout);
      for (int64_t i = box.kept.begin; i < box.kept.begin + box.kept.count; ++i)
        ++counted[static_cast<std::size_t>(all[static_cast<std::size_t>(i)])];
    }
  }
  for (const int times : counted) ASSERT_EQ(times, 1);
}

void check_shards_tile(const Case& one) {
  for (const auto& [rank, reductions] : one.of_rank) {
    for (std::size_t b = 0; b < reductions.size(); ++b) {
      int64_t begin = 0;
      for (const int other : one.ranks(reductions[b].sums.shards, rank)) {
        const Reduction& theirs = one.of_rank.at(other)[b];
        ASSERT_EQ(theirs.box, reductions[b].box);
        ASSERT_EQ(theirs.kept.begin, begin);
        begin += theirs.kept.count;
      }
      ASSERT_EQ(begin, reductions[b].box.box.numel());
    }
  }
}

/// All ranks of a set describe the same set, and those that are said to hold the same do.
void check_sets_agree(const Case& one) {
  for (const auto& [rank, reductions] : one.of_rank) {
    for (std::size_t b = 0; b < reductions.size(); ++b) {
      const Reduction& box = reductions[b];
      std::vector<RankSet> sets = {box.sums.all, box.sums.shards, box.sums.rest, box.same,
                                   box.same_weight};
      sets.insert(sets.end(), box.later.begin(), box.later.end());
      for (const RankSet& set : sets) {
        const auto& ranks = one.ranks(set, rank);
        ASSERT_NE(std::ranges::find(ranks, rank), ranks.end()) << to_string(set);
        if (ranks.front() == rank) continue;  // the first is asked by all others
        ASSERT_EQ(one.ranks(set, ranks.front()), ranks) << to_string(set);
      }
      for (const int other : one.ranks(box.same, rank)) {
        const Reduction& theirs = one.of_rank.at(other)[b];
        ASSERT_EQ(theirs.box.box, box.box.box);
        ASSERT_EQ(theirs.kept, box.kept);
      }
      for (const int other : one.ranks(box.same_weight, rank))
        ASSERT_EQ(one.of_rank.at(other)[b].box.box, box.box.box);
    }
  }
}

/// How often each contribution is in a sum. A contribution is that of one data place's tokens, seen
/// through one place of the tensor axis on one stage: it has the number of the rank there.
using Sum = std::array<int, kMostRanks>;

Sum own_gradient(const Case& one, int rank) {
  Coord coord = one.coords[static_cast<std::size_t>(rank)];
  if (one.same_on_tensor()) coord.tensor = 0;
  const int first = rank_of(coord, one.mesh), per_place = one.mesh.tensor;
  Sum sum{};
  if (!one.row.layout.is_cut(Axis::Expert)) {
    sum[static_cast<std::size_t>(first)] = 1;
    return sum;
  }
  // An expert sees the tokens of all data places with which its rank exchanges tokens.
  for (int i = 0; i < one.mesh.expert; ++i)
    sum[static_cast<std::size_t>(first + (i - coord.expert) * per_place)] = 1;
  return sum;
}

std::map<int, Sum> summed(const Case& one, const std::map<int, Sum>& before,
                          const std::function<RankSet(int rank)>& set) {
  std::map<int, Sum> after;
  for (const auto& [rank, own] : before) {
    Sum& sum = after[rank];
    for (const int other : one.ranks(set(rank), rank))
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += before.at(other)[i];
  }
  return after;
}

/// Simulates the sums: every token's contribution is in every result exactly once.
void check_sums(const Case& one) {
  for (std::size_t b = 0; b < 3; ++b) {
    std::map<int, Sum> own;
    for (const auto& [rank, reductions] : one.of_rank)
      if (b < reductions.size()) own[rank] = own_gradient(one, rank);
    const auto box = [&](int rank) -> const Reduction& { return one.of_rank.at(rank)[b]; };
    const auto at_once = summed(one, own, [&](int rank) { return box(rank).sums.all; });
    auto now = summed(one, own, [&](int rank) { return box(rank).sums.shards; });
    now = summed(one, now, [&](int rank) { return box(rank).sums.rest; });
    ASSERT_EQ(now, at_once) << "shards first and then the rest is not the whole sum";
    for (std::size_t step = 0; step < 2; ++step)
      now = summed(one, now, [&](int rank) {
        return step < box(rank).later.size() ? box(rank).later[step] : RankSet{};
      });
    for (const auto& [rank, sum] : now) {
      const Coord mine = one.coords[static_cast<std::size_t>(rank)];
      Sum wanted{};
      for (int other = 0; other < one.mesh.world(); ++other) {
        const Coord theirs = one.coords[static_cast<std::size_t>(other)];
        if (!one.of_rank.contains(other)) continue;
        if (one.same_on_tensor()
                ? theirs.tensor != 0
                : one.row.layout.is_cut(Axis::Tensor) &&
                      theirs.tensor / box(rank).box.copies != mine.tensor / box(rank).box.copies)
          continue;
        wanted[static_cast<std::size_t>(other)] = 1;
      }
      ASSERT_EQ(sum, wanted) << "rank " << rank << ", box " << b;
    }
  }
}

TEST(Reduction, HoldsOnEveryMeshOfAtMostSixteenRanks) {
  int cases = 0;
  for_each_small_mesh([&](const Degrees& mesh) {
    if (HasFatalFailure()) return;
    for (const Row& row : rows_for(mesh)) {
      for (const Policy& policy : policies_for(mesh)) {
        const Case one(mesh, row, policy);
        SCOPED_TRACE(one.text());
        ASSERT_NO_FATAL_FAILURE(check_counts(one));
        ASSERT_NO_FATAL_FAILURE(check_shards_tile(one));
        ASSERT_NO_FATAL_FAILURE(check_sets_agree(one));
        ASSERT_NO_FATAL_FAILURE(check_sums(one));
        ++cases;
      }
    }
  });
  EXPECT_GT(cases, 5000);
}

TEST(Reduction, IsTheTableOfTheDesign) {
  const Degrees mesh{.pipe = 2, .replica = 2, .shard = 2, .context = 2, .tensor = 2, .expert = 2};
  const auto first = [&](const Layout& layout, const Policy& policy, Holders holders = {}) {
    return reductions_of(layout, holders, mesh, {}, policy).front();
  };
  using enum Axis;
  const Policy plain, sharded{.sharding = Sharding::Parameters};
  const Reduction dense = first(Layout({64}), plain);
  EXPECT_EQ(to_string(dense.sums.all), "replica+shard+context");
  EXPECT_EQ(to_string(dense.sums.shards), "one");
  EXPECT_EQ(to_string(dense.same), "replica+shard+context+tensor");
  const Reduction shard = first(Layout({64}), sharded);
  EXPECT_EQ(to_string(shard.sums.shards), "shard");
  EXPECT_EQ(to_string(shard.sums.rest), "replica+context");
  EXPECT_EQ(to_string(shard.same), "replica+context+tensor");
  const Reduction level1 = first(Layout({64}), {.sharding = Sharding::Optimizer});
  EXPECT_EQ(to_string(level1.same), "replica+context+tensor");
  EXPECT_EQ(to_string(level1.same_weight), "replica+shard+context+tensor");
  const Reduction column = first(Layout({64}, {{Tensor, 0}}), plain);
  EXPECT_EQ(to_string(column.same), "replica+shard+context");
  const Reduction norm = first(Layout({64}, {}, {Tensor}), sharded);
  EXPECT_EQ(to_string(norm.sums.all), "replica+shard+context+tensor");
  EXPECT_EQ(to_string(norm.sums.rest), "replica+context+tensor");
  const Reduction tied = first(Layout({64}), plain, {0, 1});
  ASSERT_EQ(tied.later.size(), 1u);
  EXPECT_EQ(to_string(tied.later[0]), "pipe 0, 1");
  EXPECT_EQ(to_string(tied.same), "replica+shard+context+tensor+pipe 0, 1");
  const Reduction expert = first(Layout({64}, {{Expert, 0}}), sharded);
  EXPECT_EQ(to_string(expert.sums.shards), "replica+shard+context+same experts");
  EXPECT_EQ(expert.shard.count, 4);
  EXPECT_EQ(to_string(expert.same), "tensor");
}

}  // namespace
}  // namespace trireme
