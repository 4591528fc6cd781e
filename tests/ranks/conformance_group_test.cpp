// Groups: split in every way, many at once, in threads of their own, and two worlds side by side.
#include <functional>
#include <thread>

#include "support/backends.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using comm::Work;

ON_EVERY_BACKEND_AND_GPUS(Groups);

/// Every member's rank in the world, in the order of the group.
std::vector<int64_t> members(const Communicator& group, int world_rank) {
  at::Tensor all = at::zeros({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, world_rank, at::kLong)).wait();
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

using List = std::vector<int64_t>;

TEST_P(Groups, AreMadeOfEqualColorsInTheOrderOfKeysThenOfRanks) {
  run_world(GetParam(), 4, [](const Communicator& world) {
    const int me = world.rank();
    EXPECT_EQ(members(world.split("same", 3, 0), me), (List{0, 1, 2, 3}));  // equal keys: by rank
    const Communicator backwards = world.split("backwards", 0, -me);
    EXPECT_EQ(members(backwards, me), (List{3, 2, 1, 0}));
    EXPECT_EQ(backwards.rank(), 3 - me);
    EXPECT_EQ(backwards.name(), "backwards");
    const Communicator odd = world.split("odd", me % 2, 100 - me);
    EXPECT_EQ(members(odd, me), me % 2 == 0 ? (List{2, 0}) : (List{3, 1}));
    const Communicator uneven = world.split("uneven", me == 2 ? 1'000'000 : 7, me);
    EXPECT_EQ(members(uneven, me), me == 2 ? (List{2}) : (List{0, 1, 3}));
  });
}

TEST_P(Groups, OrderOfTheGroupNotOfTheWorldDecidesWhereThingsGo) {
  NOT_ON_GPUS("adds in an order of its own");
  run_world(GetParam(), 3, [](const Communicator& world) {
    const Communicator group = world.split("turned", 0, (world.rank() + 1) % 3);  // 2, 0, 1
    ASSERT_EQ(group.rank(), (world.rank() + 1) % 3);
    for (const int64_t count : {3, 90'000}) {
      at::Tensor data = marked(world.rank(), {count});
      group.broadcast(data, 0).wait();
      EXPECT_TRUE(same_bits(data, marked(2, {count})));
      at::Tensor out = at::zeros({count});
      group.reduce_scatter(out, marked(world.rank(), {3 * count})).wait();
      const at::Tensor sum =
          marked(0, {3 * count}) + marked(1, {3 * count}) + marked(2, {3 * count});
      EXPECT_TRUE(same_bits(out, sum.slice(0, group.rank() * count, (group.rank() + 1) * count)));
    }
    // Addition is in the order of the group: 1e8 first or last makes a difference in float32.
    at::Tensor delicate = at::full({1}, world.rank() == 2 ? 1e8 : 3.f);
    at::Tensor in_world = delicate.clone();
    group.all_reduce(delicate).wait();
    world.all_reduce(in_world).wait();
    EXPECT_EQ(delicate.item().toFloat(), (1e8f + 3.f) + 3.f);
    EXPECT_EQ(in_world.item().toFloat(), (3.f + 3.f) + 1e8f);
  });
}

TEST_P(Groups, OfOneAreLegalAndCopyWhatIsAskedFor) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    const Communicator alone = world.split("alone", world.rank(), 0);
    ASSERT_EQ(alone.size(), 1);
    at::Tensor data = marked(5, {10});
    alone.all_reduce(data, core::ReduceOp::Mean).wait();
    alone.broadcast(data, 0).wait();
    alone.reduce(data, 0).wait();
    EXPECT_TRUE(same_bits(data, marked(5, {10})));
    for (const auto& act : std::vector<std::function<Work(at::Tensor)>>{
             [&](at::Tensor out) { return alone.all_gather(out, data); },
             [&](at::Tensor out) { return alone.reduce_scatter(out, data); },
             [&](at::Tensor out) { return alone.all_to_all(out, data); },
             [&](at::Tensor out) { return alone.gather(out, data, 0); },
             [&](at::Tensor out) { return alone.scatter(out, data, 0); }}) {
      at::Tensor out = at::zeros({10});
      act(out).wait();
      EXPECT_TRUE(same_bits(out, data));
    }
    alone.barrier();
    const Communicator deeper = alone.split("deeper", 4, 4);
    deeper.barrier();
    EXPECT_EQ(at::count_nonzero(deeper.allocate({1'000})).item().toLong(), 0);
  });
}

TEST_P(Groups, NestAndOutliveTheGroupsTheyCameFrom) {
  run_worlds(GetParam(), 4, [](int rank, const Join& join) {
    std::vector<Communicator> leaves;
    {
      const Communicator world = join("parent");
      const Communicator half = world.split("half", rank / 2, -rank);
      leaves.push_back(half.split("pair", 0, rank));
      leaves.push_back(half.split("single", half.rank(), 0));
    }
    for (int round = 0; round < 20; ++round) {
      at::Tensor data = marked(rank, {round * 1'500});
      leaves[0].all_reduce(data).wait();
      const int first = rank / 2 * 2;
      ASSERT_TRUE(
          same_bits(data, marked(first, {round * 1'500}) + marked(first + 1, {round * 1'500})));
      leaves[1].all_reduce(data).wait();
    }
  });
}

TEST_P(Groups, ManyAtOnceWithTheirOperationsInterleaved) {
  NOT_ON_GPUS("needs one order of launches on all ranks");
  run_world(GetParam(), 3, [](const Communicator& world) {
    constexpr int kGroups = 40;
    std::vector<Communicator> groups;
    for (int i = 0; i < kGroups; ++i)
      groups.push_back(world.split("group " + std::to_string(i), i % 3 == 0 ? world.rank() / 2 : 0,
                                   i % 2 ? -world.rank() : 0));
    for (int round = 0; round < 3; ++round) {
      std::vector<Work> works;
      std::vector<at::Tensor> data;
      for (int i = 0; i < kGroups; ++i) {
        // Each rank starts them in another order: only the order inside a group is agreed.
        const int g = (i * 7 + world.rank() * 13) % kGroups;
        data.push_back(at::full({1 + g * 977}, g + 1, at::kLong));
        works.push_back(groups[static_cast<std::size_t>(g)].all_reduce(data.back()));
      }
      for (Work& work : works) work.wait();
      for (int i = 0; i < kGroups; ++i) {
        const int g = (i * 7 + world.rank() * 13) % kGroups;
        const at::Tensor& got = data[static_cast<std::size_t>(i)];
        const int64_t expected = (g + 1) * groups[static_cast<std::size_t>(g)].size();
        ASSERT_EQ(got.min().item().toLong(), expected) << "group " << g;
        ASSERT_EQ(got.max().item().toLong(), expected) << "group " << g;
      }
    }
  });
}

TEST_P(Groups, EachThreadOfARankRunsItsOwnAtTheSameTime) {
  NOT_ON_GPUS("needs ops of several groups in one order on all ranks, and threads have none");
  run_world(GetParam(), 2, [](const Communicator& world) {
    constexpr int kThreads = 4;
    std::vector<Communicator> groups;
    for (int i = 0; i < kThreads; ++i)
      groups.push_back(world.split("thread " + std::to_string(i), 0, world.rank()));
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t, group = groups[static_cast<std::size_t>(t)]] {
        try {
          for (int i = 0; i < 60; ++i) {
            const int64_t count = 1 + (i * 37 + t * 11) % 60 * 2'000;
            at::Tensor data = marked(world.rank() + t, {count});
            group.all_reduce(data).wait();
            ASSERT_TRUE(same_bits(data, marked(t, {count}) + marked(t + 1, {count})))
                << "thread " << t << " round " << i;
            at::Tensor got = at::zeros({500});
            Work receive = group.recv(got, 1 - group.rank(), i);
            group.send(marked(i + group.rank(), {500}), 1 - group.rank(), i).wait();
            receive.wait();
            ASSERT_TRUE(same_bits(got, marked(i + 1 - group.rank(), {500})));
          }
        } catch (const std::exception& error) {
          ADD_FAILURE() << "thread " << t << " threw: " << error.what();
        }
      });
    }
  });
}

TEST_P(Groups, TwoWorldsInOneProcessDoNotDisturbEachOther) {
  run_worlds(GetParam(), 2, [](int rank, const Join& join) {
    const Communicator first = join("first"), second = join("second");
    for (int i = 0; i < 20; ++i) {
      at::Tensor a = marked(rank, {3'000 * i}), b = marked(rank + 5, {1'000 * i});
      Work work = first.all_reduce(a);
      second.broadcast(b, 1).wait();
      work.wait();
      ASSERT_TRUE(same_bits(a, marked(0, {3'000 * i}) + marked(1, {3'000 * i})));
      ASSERT_TRUE(same_bits(b, marked(6, {1'000 * i})));
    }
    // The end of one is not the end of the other.
    second.barrier();
    if (rank == 0) first.abort("enough");
    EXPECT_THROW(
        {
          for (int i = 0; i < 1000; ++i) first.barrier();
        },
        CommError);
    at::Tensor b = marked(rank, {70'000});
    second.all_reduce(b).wait();
    EXPECT_TRUE(same_bits(b, marked(0, {70'000}) + marked(1, {70'000})));
  });
}

}  // namespace
}  // namespace trireme::test
