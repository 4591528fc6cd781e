#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "trireme/core/error.h"
#include "trireme/layout/even_range.h"
#include "trireme/layout/reduction.h"

namespace trireme {
namespace {

std::vector<Box> boxes_of(const Layout& layout, const Coord& coord, const Degrees& degrees) {
  std::vector<Box> boxes;
  for (LocalBox& one : layout.local_boxes(coord, degrees)) boxes.push_back(std::move(one.box));
  return boxes;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const MisuseError& error) {
    return error.what();
  }
  return "not refused";
}

/// Every mesh of at most `most` ranks along each axis, with every expert degree that it allows.
void for_each_mesh(int most, const std::function<void(const Degrees&)>& body) {
  for (int pipe = 1; pipe <= 2; ++pipe)
    for (int replica = 1; replica <= 2; ++replica)
      for (int shard = 1; shard <= most; ++shard)
        for (int context = 1; context <= 2; ++context)
          for (int tensor = 1; tensor <= most; ++tensor)
            for (int expert = 1; expert <= replica * shard * context; ++expert)
              if (replica * shard * context % expert == 0)
                body({pipe, replica, shard, context, tensor, expert});
}

/// Calls `body` with the flat index in the whole of each element of the piece.
void for_each_element(const Piece& piece, const std::function<void(int64_t)>& body) {
  for (int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (std::size_t dim = piece.whole.size(); dim-- > 0;) {
      flat += (piece.offset[dim] + rest % piece.shape[dim]) * stride;
      rest /= piece.shape[dim];
      stride *= piece.whole[dim];
    }
    body(flat);
  }
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  return Box{{}, shape}.numel();
}

/// The copies that `cut` makes of the element with this flat index.
int copies_of(const Cut& cut, const std::vector<int64_t>& whole, int64_t flat) {
  if (cut.sections.empty()) return 1;
  for (std::size_t dim = whole.size() - 1; dim > static_cast<std::size_t>(cut.dim); --dim)
    flat /= whole[dim];
  int64_t at = flat % whole[static_cast<std::size_t>(cut.dim)];
  for (const Section& section : cut.sections) {
    if (at < section.size) return section.copies;
    at -= section.size;
  }
  return 0;
}

/// Counts, over all ranks, how often each element is held, and compares with what the copies and
/// the axes that do not cut say.
void expect_tiles(const Layout& layout, const Degrees& mesh, Sharding sharding = Sharding::None) {
  std::vector<int64_t> held(static_cast<std::size_t>(numel_of(layout.whole())), 0);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    for (const Piece& piece :
         pieces_of("w", layout, coord_of(rank, mesh), mesh, {.sharding = sharding})) {
      ASSERT_EQ(piece.begin % Layout::kFlatBorder, 0);
      const int64_t end = piece.begin + piece.count;
      ASSERT_TRUE(end % Layout::kFlatBorder == 0 || end == numel_of(piece.shape));
      ASSERT_GT(piece.count, 0);
      for_each_element(piece, [&](int64_t flat) { ++held[static_cast<std::size_t>(flat)]; });
    }
  }
  const bool flat_cut = sharding != Sharding::None && mesh.shard > 1;
  for (std::size_t i = 0; i < held.size(); ++i) {
    int64_t expected = mesh.world();
    for (const Cut& cut : layout.cuts())
      expected =
          expected * copies_of(cut, layout.whole(), static_cast<int64_t>(i)) / mesh.of(cut.axis);
    const bool expert = layout.is_cut(Axis::Expert) && mesh.expert > 1;
    if (flat_cut) expected /= expert ? mesh.data() / mesh.expert : mesh.shard;
    ASSERT_EQ(held[i], expected) << "element " << i << " on " << to_string(mesh);
  }
}

TEST(EvenPart, DealsTheLargerPartsFirst) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t parts = 1; parts <= 12; ++parts) {
      int64_t at = 0;
      for (int64_t index = 0; index < parts; ++index) {
        const Range part = even_range(size, parts, index);
        ASSERT_EQ(part.begin, at);
        ASSERT_EQ(part.count, (size + parts - 1 - index) / parts);
        at += part.count;
      }
      ASSERT_EQ(at, size);
    }
  }
  EXPECT_EQ(even_range(6, 4, 1), (Range{2, 2}));
  EXPECT_EQ(even_range(6, 4, 3), (Range{5, 1}));
}

TEST(Coord, RoundTripsOnEveryMesh) {
  for_each_mesh(3, [](const Degrees& mesh) {
    ASSERT_NO_THROW(check(mesh, mesh.world()));
    std::map<std::pair<int, int>, int> ranks_of_expert;  // (pipe and tensor, expert) -> ranks
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const Coord coord = coord_of(rank, mesh);
      ASSERT_EQ(rank_of(coord, mesh), rank);
      for (const Axis axis :
           {Axis::Pipe, Axis::Replica, Axis::Shard, Axis::Context, Axis::Expert, Axis::Tensor}) {
        ASSERT_GE(coord.of(axis), 0);
        ASSERT_LT(coord.of(axis), mesh.of(axis));
      }
      int& rest = ranks_of_expert[{coord.pipe * mesh.tensor + coord.tensor, coord.expert}];
      ASSERT_EQ(rest_of(coord, mesh), rest++);
    }
    for (const auto& [place, ranks] : ranks_of_expert) ASSERT_EQ(ranks, mesh.data() / mesh.expert);
  });
}

TEST(Coord, TensorVariesFastestAndPipeSlowest) {
  const Degrees mesh{.pipe = 2, .replica = 2, .shard = 3, .context = 2, .tensor = 4, .expert = 2};
  EXPECT_EQ(coord_of(1, mesh), (Coord{.tensor = 1}));
  EXPECT_EQ(coord_of(4, mesh), (Coord{.context = 1, .expert = 1}));
  EXPECT_EQ(coord_of(8, mesh), (Coord{.shard = 1}));
  EXPECT_EQ(coord_of(24, mesh), (Coord{.replica = 1}));
  EXPECT_EQ(coord_of(48, mesh), (Coord{.pipe = 1}));
}

TEST(Layout, EveryCutTilesTheWholeOnEveryMesh) {
  const std::vector<Layout> layouts = {
      Layout({}),
      Layout({5, 3}),
      Layout({0, 3}, {{Axis::Tensor, 0}}),
      Layout({7}, {{Axis::Tensor, 0}}),
      Layout({70}),
      Layout({5, 7}, {{Axis::Tensor, 1}}),
      Layout({13, 9}, {{Axis::Tensor, 0}, {Axis::Context, 0}}),
      Layout({4, 6, 5}, {{Axis::Expert, 0}, {Axis::Tensor, 2}}),
      Layout({18, 5}, {{Axis::Tensor, 0, {{.size = 12, .grain = 2}, {3}, {3}}}}),
      Layout({3, 16}, {{Axis::Tensor, 1, {{8}, {4}, {4}}}, {Axis::Context, 1}}),
      Layout({3, 16}, {{Axis::Context, 1}, {Axis::Tensor, 1, {{6}, {10}}}}),
  };
  for_each_mesh(4, [&](const Degrees& mesh) {
    for (const Layout& layout : layouts)
      for (const Sharding sharding : {Sharding::None, Sharding::Parameters})
        expect_tiles(layout, mesh, sharding);
  });
}

TEST(Layout, EverySizeGrainAndCopiesTileTheWhole) {
  for (int tensor = 1; tensor <= 6; ++tensor)
    for (int copies = 1; copies <= tensor; ++copies)
      for (int64_t grain = 1; grain <= 3; ++grain)
        for (int64_t queries = 0; queries <= 9; ++queries)
          for (int64_t keys = 0; keys <= 4; ++keys) {
            if (tensor % copies != 0) continue;
            const std::vector<Section> sections = {{queries * grain, 1, grain},
                                                   {keys * grain, copies, grain}};
            const Layout layout({(queries + keys) * grain, 2}, {{Axis::Tensor, 0, sections}});
            expect_tiles(layout, {.shard = 2, .tensor = tensor});
          }
}

TEST(Layout, CutsFusedHeadsEachForItself) {
  // 6 query heads and 2 key heads of 8 rows, over 4 ranks; a key head is held by two.
  const Layout layout({64, 3}, {{Axis::Tensor, 0, {{48, 1, 8}, {16, 2, 8}}}});
  const Degrees mesh{.tensor = 4};
  const auto held = [&](int rank) { return boxes_of(layout, coord_of(rank, mesh), mesh); };
  EXPECT_EQ(held(0), (std::vector<Box>{{{0, 0}, {16, 3}}, {{48, 0}, {8, 3}}}));
  EXPECT_EQ(held(1), (std::vector<Box>{{{16, 0}, {16, 3}}, {{48, 0}, {8, 3}}}));
  EXPECT_EQ(held(2), (std::vector<Box>{{{32, 0}, {8, 3}}, {{56, 0}, {8, 3}}}));
  EXPECT_EQ(held(3), (std::vector<Box>{{{40, 0}, {8, 3}}, {{56, 0}, {8, 3}}}));
}

TEST(Layout, ShardsFlatAtMultiplesOfSixteen) {
  const Layout layout({5, 10});
  const Degrees mesh{.shard = 3};
  const auto piece = [&](int rank) {
    return pieces_of("w", layout, coord_of(rank, mesh), mesh, {.sharding = Sharding::Parameters})
        .at(0);
  };
  EXPECT_EQ(piece(0), (Piece{"w", {5, 10}, {0, 0}, {5, 10}, 0, 32}));
  EXPECT_EQ(piece(1), (Piece{"w", {5, 10}, {0, 0}, {5, 10}, 32, 16}));
  EXPECT_EQ(piece(2), (Piece{"w", {5, 10}, {0, 0}, {5, 10}, 48, 2}));
}

TEST(Layout, RefusesWithTheNumbers) {
  EXPECT_EQ(refusal([] {
              Layout({4, 4}, {{Axis::Tensor, 2}});
            }),
            "Layout: tensor cuts dim 2 of [4, 4], which has 2 dims");
  EXPECT_EQ(refusal([] { Layout({4, -1}); }), "Layout: [4, -1] has a dim below 0");
  EXPECT_EQ(refusal([] {
              Layout({16}, {{Axis::Tensor, 0, {{8}, {4}}}});
            }),
            "Layout: the sections of dim 0 are 8 + 4 = 12, but the dim has 16");
  EXPECT_EQ(refusal([] {
              Layout({10}, {{Axis::Tensor, 0, {{10, 1, 4}}}});
            }),
            "Layout: a section of 10 cannot be cut in grains of 4");
  EXPECT_EQ(refusal([] {
              Layout({8}, {{Axis::Tensor, 0, {{8, -1, 1}}}});
            }),
            "Layout: a section of size 8, copies -1, grain 1 is not possible");
  EXPECT_EQ(
      refusal([] {
        Layout({12}, {{Axis::Tensor, 0, {{12, Section::kAsNeeded, 4}}}})
            .local_boxes({}, {.tensor = 5});
      }),
      "Layout: 12 of dim 0 are 3 grains of 4, which can neither be dealt nor copied evenly to "
      "tensor 5");
  EXPECT_EQ(refusal([] {
              Layout({96}, {{Axis::Tensor, 0, {{96, 1, 32}}}}).check_fits({.tensor = 4});
            }),
            "Layout: 96 of dim 0, in grains of 32, cannot be dealt to tensor 4: a rank would hold "
            "nothing");
  EXPECT_EQ(refusal([] {
              Layout({8}, {{Axis::Shard, 0}});
            }),
            "Layout: shard does not cut [8] along a dim; a Policy says what it divides");
  EXPECT_EQ(refusal([] {
              Layout({8}, {{Axis::Tensor, 0, {{8, 3, 1}}}}).local_boxes({}, {.tensor = 4});
            }),
            "Layout: 3 copies do not divide tensor 4");
  EXPECT_EQ(refusal([] {
              Layout({8}, {{Axis::Context, 0}, {Axis::Tensor, 0, {{8, 1, 4}}}})
                  .local_boxes({}, {.context = 3, .tensor = 2});
            }),
            "Layout: an earlier cut left 3 of dim 0, which cannot be cut in grains of 4");
  EXPECT_EQ(refusal([] {
              Layout({8}, {{Axis::Tensor, 0}}).local_boxes({.tensor = 2}, {.tensor = 2});
            }),
            "Layout: there is no place 2 along tensor 2");
}

TEST(Degrees, RefusesWithTheNumbers) {
  EXPECT_EQ(refusal([] { check({.pipe = 2, .shard = 2, .tensor = 3}, 8); }),
            "Mesh: pipe 2 x shard 2 x tensor 3 = 12, but the world has 8 ranks");
  EXPECT_EQ(refusal([] { check({.tensor = 2}, 1); }),
            "Mesh: tensor 2 = 2, but the world has 1 rank");
  EXPECT_EQ(refusal([] { check({}, 8); }), "Mesh: 1, but the world has 8 ranks");
  EXPECT_EQ(refusal([] { check({.tensor = 0}, 8); }),
            "Mesh: tensor is 0, but a degree is at least 1");
  EXPECT_EQ(refusal([] { check({.replica = 2, .shard = 2, .tensor = 2, .expert = 3}, 8); }),
            "Mesh: expert 3 does not divide replica 2 x shard 2 x context 1 = 4");
  EXPECT_EQ(refusal([] { check({.pipe = 65536, .tensor = 65536}, 8); }),
            "Mesh: pipe 65536 x tensor 65536 is more than 2147483647 ranks");
  EXPECT_EQ(refusal([] { coord_of(8, {.tensor = 8}); }), "Mesh: there is no rank 8 among 8");
  EXPECT_EQ(refusal([] { rank_of({.tensor = 8}, {.tensor = 8}); }),
            "Mesh: there is no place 8 along tensor 8");
}

// 6 query heads of 2 kv heads over 4 ranks: the three queries of a kv head go to the two ranks that
// hold a copy of it.
TEST(Layout, KeepsTheQueriesOfAKvHeadTogetherForAnyNumberOfRanks) {
  constexpr int64_t kHead = 2, kHeads = 6, kKvHeads = 2;
  const Section query{kHeads * kHead, Section::kAsNeeded, kHeads / kKvHeads * kHead, kHead};
  const Section key{kKvHeads * kHead, Section::kAsNeeded, kHead};
  const Layout layout({query.size + key.size}, {{Axis::Tensor, 0, {query, key}}});
  const auto sizes = [&](int place, int degree) {
    std::vector<int64_t> all;
    for (const Range& part :
         layout.section_ranges(Axis::Tensor, {.tensor = place}, {.tensor = degree}))
      all.push_back(part.count);
    return all;
  };
  const std::vector<int64_t> two = {4, 2}, one = {2, 2}, half = {6, 2};
  EXPECT_EQ(sizes(0, 2), half);
  EXPECT_EQ(sizes(0, 4), two);
  EXPECT_EQ(sizes(1, 4), one);
  EXPECT_EQ(sizes(2, 4), two);
  EXPECT_EQ(sizes(3, 4), one);
  EXPECT_EQ(layout.local_boxes({}, {}).size(), 1u) << "what is whole is one box";
  for (const int degree : {2, 4, 6}) {
    for (int place = 0; place < degree; ++place) {
      const auto held = layout.local_boxes({.tensor = place}, {.tensor = degree});
      const auto parts = layout.section_ranges(Axis::Tensor, {.tensor = place}, {.tensor = degree});
      const Range q = parts[0], k = parts[1];
      const LocalBox& keys = held.back();
      EXPECT_EQ(keys.copies, degree > kKvHeads ? degree / kKvHeads : 1);
      EXPECT_EQ(held.front().copies, 1) << "queries are never copied";
      for (int64_t head = q.begin / kHead; head < (q.begin + q.count) / kHead; ++head) {
        const int64_t kv = query.size + head / (kHeads / kKvHeads) * kHead;
        EXPECT_TRUE(kv >= k.begin && kv < k.begin + k.count) << head;
      }
    }
  }
}

TEST(Layout, HasItsBoxesSideBySideInTheRanksOwnTensor) {
  const Layout layout({6, 2}, {{Axis::Tensor, 0, {{4}, {2}}}});
  const auto held = layout.local_boxes({.tensor = 1}, {.tensor = 2});
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0], (LocalBox{{{2, 0}, {2, 2}}, {0, 0}, 1}));
  EXPECT_EQ(held[1], (LocalBox{{{5, 0}, {1, 2}}, {2, 0}, 1}));
}

TEST(Layout, CutsRowsUnevenly) {
  const Degrees mesh{.tensor = 2};
  const Layout rows({4, 3}, {{Axis::Tensor, 1}});
  EXPECT_EQ(rows.local_shape({.tensor = 0}, mesh), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(rows.local_shape({.tensor = 1}, mesh), (std::vector<int64_t>{4, 1}));
}

TEST(Layout, ShardsExpertsOverAllRanksThatHoldTheSame) {
  for_each_mesh(3, [](const Degrees& degrees) {
    const Layout dense({50}), experts({12, 5}, {{Axis::Expert, 0}});
    for (int rank = 0; rank < degrees.world(); ++rank) {
      const Coord coord = coord_of(rank, degrees);
      const auto shard_of = [&](const Layout& layout) {
        const Policy policy{.sharding = Sharding::Parameters};
        return position_in(gradient_sums_of(layout, degrees, policy).shards, coord, degrees);
      };
      const Position plain = shard_of(dense), own = shard_of(experts);
      EXPECT_EQ(plain.count, degrees.shard);
      EXPECT_EQ(plain.index, coord.shard);
      const bool shared = degrees.shard > 1 && degrees.expert > 1;
      EXPECT_EQ(own.count, shared ? degrees.data() / degrees.expert : degrees.shard);
      EXPECT_EQ(own.index, shared ? rest_of(coord, degrees) : coord.shard);
    }
  });
}

}  // namespace
}  // namespace trireme
