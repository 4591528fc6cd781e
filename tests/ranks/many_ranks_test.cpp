// More ranks than any machine of ours has cores, over sockets: threads of this process, each with a
// world, a monitor and connections of its own. What `auto` picks there is another algorithm than
// among a few.
#include <gmock/gmock.h>

#include <semaphore>
#include <thread>

#include "support/reference.h"
#include "support/scratch.h"
#include "support/tcp_world.h"
#include "trireme/comm/program.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using core::Algorithm;
using core::OpKind;
using core::ReduceOp;

constexpr int kRanks = 40;

void run_tcp_threads(int size, const std::function<void(Communicator)>& body) {
  const Scratch scratch;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const TcpPlace place{scratch / "store", rank, size, {.timeout = std::chrono::seconds(60)}};
        body({"world", join_tcp(place, net::Clock::now() + std::chrono::seconds(60))});
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

comm::LoweredOp job_of(OpKind kind, int64_t floats, int size) {
  comm::LoweredOp job;
  job.info.kind = kind;
  job.info.item_bytes = 4;
  job.info.root = 0;
  job.bytes = 4 * floats;
  for (int rank = 0; rank <= size; ++rank) job.out_begin.push_back(job.bytes / size * rank);
  job.in_begin = job.out_begin;
  return job;
}

TEST(ManyRanks, MeetAndGiveTheSameNumbersAsAFew) {
  run_tcp_threads(kRanks, [](const Communicator& world) {
    const int size = world.size(), me = world.rank();
    for (const int64_t count : {1, 1000, 70'000}) {
      at::Tensor sum = at::arange(count, at::kFloat) + me;  // whole numbers: exact in any order
      world.all_reduce(sum).wait();
      const at::Tensor expected = at::arange(count, at::kFloat) * size + size * (size - 1) / 2;
      EXPECT_TRUE(same_bits(sum, expected)) << count;
    }
    at::Tensor from_last = marked(me, {500});
    world.broadcast(from_last, size - 1).wait();
    EXPECT_TRUE(same_bits(from_last, marked(size - 1, {500})));
    at::Tensor at_root = at::full({64}, me + 1.0);
    world.reduce(at_root, 3).wait();
    EXPECT_EQ(at_root[7].item<float>(), me == 3 ? size * (size + 1) / 2 : me + 1);
    at::Tensor all = at::zeros({size, 5});
    world.all_gather(all, marked(me, {1, 5})).wait();
    for (int rank = 0; rank < size; ++rank)
      EXPECT_TRUE(same_bits(all.narrow(0, rank, 1), marked(rank, {1, 5}))) << "part " << rank;
    const Communicator half = world.split("half", me % 2, me);
    EXPECT_EQ(half.size(), size / 2);
    half.barrier();
    world.barrier();
  });
}

TEST(ManyRanks, AddInAnOrderThatIsTheSameOnAllRanksAndInEveryRun) {
  std::vector<at::Tensor> results(kRanks);
  at::Tensor before;
  for (int run = 0; run < 2; ++run) {
    run_tcp_threads(kRanks, [&](const Communicator& world) {
      at::Tensor data = Draws(kRanks, 1024).of(world.rank(), 1024, at::kFloat);
      world.all_reduce(data).wait();
      results[static_cast<std::size_t>(world.rank())] = data;
      world.barrier();
    });
    for (const at::Tensor& result : results) EXPECT_TRUE(same_bits(result, results.front()));
    if (run > 0) {
      EXPECT_TRUE(same_bits(results.front(), before)) << "another run";
    }
    before = results.front();
  }
}

/// Whoever is late finds last words and the end of a stream at the same time.
TEST(ManyRanks, LeaveOneByOneAndAreHeardToTheEnd) {
  constexpr int kLeavers = 11;
  std::counting_semaphore<kLeavers> gone(0);
  run_tcp_threads(kLeavers + 1, [&](Communicator world) {
    const int me = world.rank(), size = world.size();
    world.barrier();
    if (me > 0) {
      const Communicator mine = std::move(world);
      for (int other = size - 1; other > me; --other) {
        at::Tensor got = at::zeros({3});
        mine.recv(got, other).wait();
        EXPECT_TRUE(same_bits(got, marked(other, {3})));
      }
      for (int other = 0; other < me; ++other) mine.send(marked(me, {3}), other).wait();
    }
    if (me > 0) return gone.release();
    for (int i = 0; i < kLeavers; ++i) ASSERT_TRUE(gone.try_acquire_for(std::chrono::seconds(30)));
    for (int other = 1; other < size; ++other) {
      at::Tensor got = at::zeros({3});
      world.recv(got, other).wait();
      EXPECT_TRUE(same_bits(got, marked(other, {3})));
    }
    world.set_timeout(std::chrono::seconds(5));
    at::Tensor more = at::zeros({3});
    EXPECT_THAT(sentence_of<CommError>([&] { world.recv(more, 7).wait(); }),
                ::testing::HasSubstr("has left the job normally"));
  });
}

TEST(Auto, AddsInRankOrderUpTo32RanksAndPicksTheLowestPriceBeyond) {
  for (const int64_t floats : {int64_t{2}, int64_t{1024}, int64_t{4} << 20}) {
    for (const int size : {2, 3, 8, 32}) {
      for (const OpKind kind : {OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter}) {
        const Algorithm picked = comm::pick(job_of(kind, floats, size), size);
        EXPECT_TRUE(picked == Algorithm::OneShot || picked == Algorithm::Direct);
      }
    }
  }
  EXPECT_EQ(comm::pick(job_of(OpKind::AllReduce, 1024, 256), 256), Algorithm::Tree);
  EXPECT_EQ(comm::pick(job_of(OpKind::AllReduce, 16 << 20, 256), 256), Algorithm::Direct);
  EXPECT_EQ(comm::pick(job_of(OpKind::Reduce, 1024, 64), 64), Algorithm::Tree);
  EXPECT_EQ(comm::pick(job_of(OpKind::Barrier, 0, 4), 4), Algorithm::OneShot);
  EXPECT_EQ(comm::pick(job_of(OpKind::Barrier, 0, 64), 64), Algorithm::Tree);
  EXPECT_EQ(comm::pick(job_of(OpKind::Broadcast, 1024, 2), 2), Algorithm::Direct);
  EXPECT_EQ(comm::pick(job_of(OpKind::Broadcast, 1 << 20, 8), 8), Algorithm::Tree);
  EXPECT_EQ(comm::pick(job_of(OpKind::AllGather, 256, 2), 2), Algorithm::Direct);
  EXPECT_EQ(comm::pick(job_of(OpKind::AllGather, 256, 64), 64), Algorithm::Tree);
}

TEST(Auto, NeverPicksWhatCostsMoreThanAnother) {
  for (int size = 33; size <= 200; size += 37) {
    for (int64_t floats = 1; floats < 64 << 20; floats *= 8) {
      for (const OpKind kind : {OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter,
                                OpKind::AllGather, OpKind::Broadcast, OpKind::Barrier}) {
        const comm::LoweredOp job = job_of(kind, floats, size);
        const double picked = comm::price_us(job, comm::pick(job, size), size);
        for (const Algorithm other :
             {Algorithm::OneShot, Algorithm::Direct, Algorithm::Ring, Algorithm::Tree}) {
          if (comm::has_algorithm(kind, other)) {
            EXPECT_LE(picked, comm::price_us(job, other, size));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
