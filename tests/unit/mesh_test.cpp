// The box of ranks and its groups, on thread ranks, against counting by hand.
#include "trireme/mesh/mesh.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "support/backends.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;

constexpr Axis kWorldAxes[] = {Axis::Pipe, Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor};

void on_threads(int size, const std::function<void(const Communicator&)>& body) {
  run_world(all_backends().front(), size, body);
}

std::vector<int> members(const Communicator& group, int world_rank) {
  at::Tensor all = at::zeros({group.size()}, at::kInt);
  group.all_gather(all, at::full({1}, world_rank, at::kInt)).wait();
  return {all.const_data_ptr<int>(), all.const_data_ptr<int>() + all.numel()};
}

/// Place of `rank` on every world axis, tensor fastest: counted, not computed by the library.
std::map<Axis, int> place(int rank, const Degrees& degrees) {
  std::map<Axis, int> found;
  int current = 0;
  for (int p = 0; p < degrees.pipe; ++p)
    for (int r = 0; r < degrees.replica; ++r)
      for (int s = 0; s < degrees.shard; ++s)
        for (int c = 0; c < degrees.context; ++c)
          for (int t = 0; t < degrees.tensor; ++t)
            if (current++ == rank)
              found = {{Axis::Pipe, p},
                       {Axis::Replica, r},
                       {Axis::Shard, s},
                       {Axis::Context, c},
                       {Axis::Tensor, t}};
  return found;
}

/// The ranks that differ from `me` on none but these axes, ascending.
std::vector<int> expected_group(int me, const Degrees& degrees, const std::set<Axis>& axes) {
  std::vector<int> ranks;
  for (int other = 0; other < degrees.world(); ++other) {
    bool in = true;
    for (const Axis axis : kWorldAxes)
      in &= axes.contains(axis) || place(other, degrees)[axis] == place(me, degrees)[axis];
    if (in) ranks.push_back(other);
  }
  return ranks;
}

const std::vector<Degrees> kMeshes = {{},
                                      {.tensor = 4},
                                      {.pipe = 2, .shard = 2, .tensor = 2},
                                      {.replica = 2, .shard = 3},
                                      {.pipe = 2, .context = 2, .tensor = 2},
                                      {.pipe = 3, .replica = 2},
                                      {.replica = 2, .shard = 2, .context = 2}};

TEST(Mesh, GroupsAlongEveryAxisAreThoseCountedByHand) {
  for (const Degrees& degrees : kMeshes) {
    on_threads(degrees.world(), [&](const Communicator& world) {
      const Mesh mesh(world, degrees);
      EXPECT_EQ(mesh.world().size(), degrees.world());
      for (const Axis axis : kWorldAxes) {
        SCOPED_TRACE(::testing::Message()
                     << to_string(degrees) << ", " << to_string(axis) << ", rank " << world.rank());
        EXPECT_EQ(mesh.coord(axis), place(world.rank(), degrees)[axis]);
        EXPECT_EQ(mesh.size(axis), degrees.of(axis));
        EXPECT_EQ(mesh.group(axis).size(), degrees.of(axis));
        EXPECT_EQ(mesh.group(axis).rank(), mesh.coord(axis));
        EXPECT_EQ(mesh.group(axis).name(), to_string(axis));
        EXPECT_EQ(members(mesh.group(axis), world.rank()),
                  expected_group(world.rank(), degrees, {axis}));
      }
    });
  }
}

TEST(Mesh, GroupsOfSeveralAxesAreFlattenedInTheOrderOfRanksAndKept) {
  for (const Degrees& degrees : kMeshes) {
    on_threads(degrees.world(), [&](const Communicator& world) {
      const Mesh mesh(world, degrees);
      const auto check = [&](std::initializer_list<Axis> axes) {
        const std::set<Axis> set(axes);
        EXPECT_EQ(members(mesh.group(axes), world.rank()),
                  expected_group(world.rank(), degrees, set))
            << to_string(degrees);
      };
      check({Axis::Replica, Axis::Shard});
      check({Axis::Shard, Axis::Replica});  // the order in which they are named does not matter
      check({Axis::Pipe, Axis::Tensor});
      check({Axis::Context, Axis::Shard, Axis::Replica});
      check({Axis::Pipe, Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor});
      check({Axis::Tensor, Axis::Tensor});
      // Asking is not collective, not even the first time. Only one rank does, and nobody hangs.
      const Mesh another(world, degrees);
      if (world.rank() == 0) {
        EXPECT_EQ(another.group({Axis::Tensor, Axis::Pipe}).size(), degrees.pipe * degrees.tensor);
      }
    });
  }
}

TEST(Mesh, ReducesAlongOneAxisOnly) {
  on_threads(8, [](const Communicator& world) {
    const Mesh mesh(world, {.pipe = 2, .shard = 2, .tensor = 2});
    at::Tensor data = at::full({3}, 1 << world.rank(), at::kLong);
    mesh.group(Axis::Shard).all_reduce(data).wait();
    const int partner = world.rank() ^ 2;
    EXPECT_EQ(data[0].item().toInt(), (1 << world.rank()) | (1 << partner));
  });
}

TEST(Mesh, ExpertsReuseTheRanksOfReplicaShardAndContext) {
  const Degrees degrees{.pipe = 1, .replica = 2, .shard = 2, .tensor = 2, .expert = 2};
  on_threads(8, [&](const Communicator& world) {
    const Mesh mesh(world, degrees);
    // The data place is rank / 2 (tensor is fastest); expert varies fastest in it.
    const int data_place = world.rank() / 2, tensor = world.rank() % 2;
    EXPECT_EQ(mesh.coord(Axis::Expert), data_place % 2);
    const int rest = data_place / 2;
    EXPECT_EQ(members(mesh.group(Axis::Expert), world.rank()),
              (std::vector<int>{4 * rest + tensor, 4 * rest + 2 + tensor}));
    EXPECT_EQ(members(mesh.group({Axis::Expert, Axis::Tensor}), world.rank()),
              (std::vector<int>{4 * rest, 4 * rest + 1, 4 * rest + 2, 4 * rest + 3}));
    EXPECT_THAT(sentence_of<MisuseError>([&] {
                  mesh.group({Axis::Expert, Axis::Shard});
                }),
                HasSubstr("twice"));
  });
}

TEST(Mesh, PrintsItsBoxAndGroupsAsATable) {
  on_threads(8, [](const Communicator& world) {
    const Mesh mesh(world, {.pipe = 2, .shard = 2, .tensor = 2});
    EXPECT_EQ(mesh.to_string(),
              "mesh of 8 ranks: pipe 2 x shard 2 x tensor 2\n"
              "  pipe       2   {0 4} {1 5} {2 6} {3 7}\n"
              "  shard      2   {0 2} {1 3} {4 6} {5 7}\n"
              "  tensor     2   {0 1} {2 3} {4 5} {6 7}\n");
  });
  on_threads(1, [](const Communicator& world) {
    EXPECT_EQ(Mesh(world, {}).to_string(), "mesh of 1 rank: 1\n");
  });
}

TEST(Mesh, RefusesDegreesThatDoNotMultiplyToTheWorldWithTheNumbers) {
  on_threads(4, [](const Communicator& world) {
    const auto refusal = [&](Degrees degrees) {
      return sentence_of<MisuseError>([&] { Mesh(world, degrees); });
    };
    EXPECT_EQ(refusal({.pipe = 2, .shard = 2, .tensor = 3}),
              "Mesh: pipe 2 x shard 2 x tensor 3 = 12, but the world has 4 ranks");
    EXPECT_THAT(refusal({}), HasSubstr("the world has 4 ranks"));
    EXPECT_THAT(refusal({.tensor = 0}), HasSubstr("tensor is 0"));
    EXPECT_THAT(refusal({.tensor = -4}), HasSubstr("tensor is -4"));
    EXPECT_THAT(refusal({.pipe = 1 << 20, .tensor = 1 << 20}), HasSubstr("more than"));
    EXPECT_THAT(refusal({.shard = 4, .expert = 3}),
                HasSubstr("expert 3 does not divide replica 1 x shard 4 x context 1 = 4"));
    at::Tensor still = at::ones({1});
    world.all_reduce(still).wait();  // and the world is none the worse
    EXPECT_EQ(still.item().toInt(), 4);
  });
}

}  // namespace
}  // namespace trireme::test
