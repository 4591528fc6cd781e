// What an algorithm moved, against the formula of what it costs: every step and every byte.
#include <cstdlib>
#include <functional>
#include <string>

#include "support/backends.h"
#include "support/reference.h"
#include "trireme/comm/program.h"
#include "trireme/comm/shared/group.h"

namespace trireme::test {
namespace {

using comm::Algorithm;
using comm::Communicator;
using comm::Op;
using comm::Rows;
using core::ReduceOp;

ON_EVERY_BACKEND(Traffic);

/// An operation of this rank, made anew for every world: `rank` of `size`.
struct TrafficCase {
  std::string name;
  Algorithm algorithm;
  std::function<Op(int rank, int size)> op;
};

Rows uneven(int size) {
  Rows rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rank == 1 ? 0 : 10 + 3 * rank);
  return rows;
}

int64_t sum(const Rows& rows) {
  int64_t all = 0;
  for (int64_t count : rows) all += count;
  return all;
}

std::vector<TrafficCase> all_cases() {
  std::vector<TrafficCase> cases;
  for (const Algorithm algorithm :
       {Algorithm::OneShot, Algorithm::Direct, Algorithm::Ring, Algorithm::Tree}) {
    for (const int64_t count : {1, 960, 1'000, 30'720, 2'000'003}) {
      cases.push_back({"all_reduce " + std::to_string(count), algorithm, [=](int rank, int) -> Op {
                         return comm::AllReduce{marked(rank, {count}), ReduceOp::Sum, algorithm};
                       }});
    }
  }
  for (const Algorithm algorithm : {Algorithm::Direct, Algorithm::Tree}) {
    for (const int64_t count : {10, 50'000}) {
      cases.push_back(
          {"broadcast " + std::to_string(count), algorithm, [=](int rank, int size) -> Op {
             return comm::Broadcast{marked(rank, {count}), size - 1, algorithm};
           }});
      cases.push_back({"reduce " + std::to_string(count), algorithm, [=](int rank, int) -> Op {
                         return comm::Reduce{marked(rank, {count}), 1, ReduceOp::Sum, algorithm};
                       }});
    }
  }
  for (const Algorithm algorithm : {Algorithm::Direct, Algorithm::Ring, Algorithm::Tree}) {
    for (const int64_t width : {3, 5'000}) {
      const auto mine = [](int rank, int size) {
        return uneven(size)[static_cast<std::size_t>(rank)];
      };
      cases.push_back({"all_gather of rows of " + std::to_string(width), algorithm,
                       [=](int rank, int size) -> Op {
                         return comm::AllGather{at::zeros({sum(uneven(size)), width}),
                                                at::zeros({mine(rank, size), width}), uneven(size),
                                                algorithm};
                       }});
      if (algorithm == Algorithm::Tree) continue;  // which reduce_scatter does not have
      cases.push_back({"reduce_scatter of rows of " + std::to_string(width), algorithm,
                       [=](int rank, int size) -> Op {
                         return comm::ReduceScatter{at::zeros({mine(rank, size), width}),
                                                    at::zeros({sum(uneven(size)), width}),
                                                    ReduceOp::Sum, uneven(size), algorithm};
                       }});
    }
  }
  for (const int64_t width : {2, 20'000}) {
    cases.push_back({"all_to_all", Algorithm::Direct, [=](int, int size) -> Op {
                       return comm::AllToAll{at::zeros({size, width}), at::zeros({size, width})};
                     }});
    cases.push_back({"gather", Algorithm::Direct, [=](int, int size) -> Op {
                       return comm::Gather{at::zeros({2 * size, width}), at::zeros({2, width}), 1};
                     }});
    cases.push_back({"scatter", Algorithm::Direct, [=](int, int size) -> Op {
                       return comm::Scatter{at::zeros({2, width}), at::zeros({2 * size, width}), 0};
                     }});
  }
  return cases;
}

/// A fresh world each: `steps` is the most of a world's life. Looked at after a barrier, which
/// moves no bytes: what the others take out of this rank's memory may be taken after its own part
/// is done. Staged through shared memory, an all_reduce is cut chunk by chunk instead of once, so a
/// rank's share may be a chunk more or less; the shares of all ranks together may not.
constexpr int64_t kChunkBytes = comm::SharedGroup::kChunkBytes;

void expect_cost(const TrafficCase& one, const Communicator& world, const std::string& backend) {
  const Op op = one.op(world.rank(), world.size());
  const core::OpInfo info = comm::describe(op, world.rank(), world.size());
  const comm::Cost cost =
      comm::cost(comm::lower(op, info, world.size()), one.algorithm, world.rank(), world.size());
  const comm::Traffic before = world.traffic();
  world.start(op).wait();
  world.barrier();
  const comm::Traffic after = world.traffic();
  const std::string name = one.name + " by " + std::string(to_string(one.algorithm)) + " on " +
                           std::to_string(world.size());
  const bool by_chunks = backend == "shm" && info.kind == core::OpKind::AllReduce &&
                         one.algorithm == Algorithm::Direct;
  const int64_t sent = after.sent_bytes - before.sent_bytes;
  EXPECT_LE(std::abs(sent - cost.sent_bytes), by_chunks ? (world.size() - 2) * kChunkBytes : 0)
      << name << ", rank " << world.rank() << ": sent " << sent << ", formula " << cost.sent_bytes;
  at::Tensor total = at::tensor({sent, cost.sent_bytes}, at::kLong);
  world.all_reduce(total).wait();
  EXPECT_EQ(total[0].item().toLong(), total[1].item().toLong()) << name << ", all ranks together";
  // The longest chain may end at another rank.
  at::Tensor steps = at::full({1}, after.steps, at::kLong);
  world.all_reduce(steps, ReduceOp::Max).wait();
  EXPECT_EQ(steps.item().toInt(), cost.steps) << name;
}

TEST_P(Traffic, OfEveryAlgorithmIsWhatItsFormulaSays) {
  const std::vector<int> sizes = GetParam().threads ? std::vector{2, 3, 4, 5, 6} : std::vector{3};
  for (const int size : sizes) {
    run_worlds(GetParam(), size, [&](int, const Join& join) {
      int number = 0;
      for (const TrafficCase& one : all_cases())
        expect_cost(one, join("case-" + std::to_string(number++)), GetParam().name);
    });
  }
}

TEST_P(Traffic, OfARingIsTwiceNMinusOneStepsAndThatShareOfTheBytes) {
  const std::vector<int> sizes = GetParam().threads ? std::vector{2, 3, 4, 5, 6} : std::vector{3};
  for (const int size : sizes) {
    run_world(GetParam(), size, [](const Communicator& world) {
      const int n = world.size();
      const comm::Traffic before = world.traffic();
      at::Tensor data = at::ones({16 * n * 100});
      world.all_reduce(data, ReduceOp::Sum, Algorithm::Ring).wait();
      const comm::Traffic after = world.traffic();
      // Not a difference: what a faster rank sent may have come before this one looked the first
      // time.
      EXPECT_EQ(after.received_bytes, 2 * (n - 1) * static_cast<int64_t>(data.nbytes()) / n);
      EXPECT_EQ(after.sent_bytes - before.sent_bytes,
                2 * (n - 1) * static_cast<int64_t>(data.nbytes()) / n);
      EXPECT_EQ(after.steps, 2 * (n - 1));
      EXPECT_EQ(after.messages - before.messages, 2 * (n - 1));
    });
  }
}

/// What Auto picks on registered memory moves no more than a ring does.
TEST_P(Traffic, InPlaceOnRegisteredMemoryIsThatOfDirect) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    at::Tensor data = world.allocate({16 * 2 * 20'000});
    world.barrier();  // what allocate itself sends is counted by then
    const comm::Traffic before = world.traffic();
    world.all_reduce(data).wait();
    world.barrier();
    const comm::Traffic after = world.traffic();
    EXPECT_LE(after.sent_bytes - before.sent_bytes, static_cast<int64_t>(data.nbytes()));
    EXPECT_GT(after.sent_bytes - before.sent_bytes, 0);
  });
}

TEST(Cost, OfAGroupOfOneIsNothing) {
  comm::LoweredOp job;
  job.info.kind = core::OpKind::AllReduce;
  job.info.item_bytes = 4;
  job.bytes = 400;
  for (const Algorithm algorithm :
       {Algorithm::OneShot, Algorithm::Direct, Algorithm::Ring, Algorithm::Tree}) {
    EXPECT_EQ(comm::cost(job, algorithm, 0, 1).steps, 0);
    EXPECT_EQ(comm::cost(job, algorithm, 0, 1).sent_bytes, 0);
  }
}

}  // namespace
}  // namespace trireme::test
