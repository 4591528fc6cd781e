// send and recv match in order per (peer, direction, tag), and wait for nothing else.
#include "support/backends.h"
#include "support/reference.h"

namespace trireme::test {
namespace {

using comm::Algorithm;
using comm::Communicator;
using comm::Work;
using core::ReduceOp;

constexpr int64_t kManyFloats = 3'000'000;  // floats: more than any ring or socket buffer holds

ON_EVERY_BACKEND_AND_GPUS(SendRecv);

TEST_P(SendRecv, EveryPairExchangesEverySizeAndDtypeBothWaysAtOnce) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    for (const auto dtype : {at::kFloat, at::kByte, at::kBool, at::kComplexDouble}) {
      for (const int64_t count : {0, 1, 7, 1000, 300'001}) {
        std::vector<Work> works;
        std::vector<std::pair<int, at::Tensor>> got;
        for (int peer = 0; peer < world.size(); ++peer) {
          if (peer == world.rank()) continue;
          got.emplace_back(peer, at::zeros({count}, dtype));
          works.push_back(world.send(marked(10 * world.rank() + peer, {count}, dtype), peer));
          works.push_back(world.recv(got.back().second, peer));
        }
        for (Work& work : works) work.wait();
        for (auto& [peer, data] : got)
          ASSERT_TRUE(same_bits(data, marked(10 * peer + world.rank(), {count}, dtype)))
              << "from " << peer;
      }
    }
  });
}

TEST_P(SendRecv, TagsMayBeReceivedInAnyOrder) {
  NOT_ON_GPUS("has no tags: messages are received in the order of the sends");
  run_world(GetParam(), 2, [](const Communicator& world) {
    constexpr int kTags = 20;
    if (world.rank() == 0) {
      std::vector<Work> works;
      for (int tag = 0; tag < kTags; ++tag)
        works.push_back(world.send(marked(tag, {100 + tag}), 1, tag - 3));
      for (Work& work : works) work.wait();
    } else {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        at::Tensor data = at::zeros({100 + tag});
        world.recv(data, 0, tag - 3).wait();
        EXPECT_TRUE(same_bits(data, marked(tag, {100 + tag}))) << "tag " << tag - 3;
      }
    }
  });
}

TEST_P(SendRecv, MessagesOfOneTagArriveInTheOrderTheyWereSent) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    constexpr int kMessages = 300;
    std::vector<Work> works;
    std::vector<at::Tensor> data;
    for (int i = 0; i < kMessages; ++i) {
      data.push_back(world.rank() == 0 ? marked(i, {50}) : at::zeros({50}));
      works.push_back(world.rank() == 0 ? world.send(data.back(), 1, 5)
                                        : world.recv(data.back(), 0, 5));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (int i = 0; i < kMessages; ++i)
      ASSERT_TRUE(same_bits(data[static_cast<std::size_t>(i)], marked(i, {50}))) << "message " << i;
  });
}

TEST_P(SendRecv, ABigMessageThatNobodyTakesYetHoldsUpNoOther) {
  NOT_ON_GPUS("has no tags: messages are received in the order of the sends");
  run_world(GetParam(), 2, [](const Communicator& world) {
    if (world.rank() == 0) {
      Work big = world.send(marked(1, {kManyFloats}), 1, 1);
      world.send(marked(2, {10}), 1, 2).wait();
      at::Tensor answer = at::zeros({1});
      world.recv(answer, 1, 3).wait();  // comes only once tag 2 was received
      big.wait();
    } else {
      at::Tensor small = at::zeros({10}), big = at::zeros({kManyFloats});
      world.recv(small, 0, 2).wait();
      EXPECT_TRUE(same_bits(small, marked(2, {10})));
      world.send(at::ones({1}), 0, 3).wait();
      world.recv(big, 0, 1).wait();
      EXPECT_TRUE(same_bits(big, marked(1, {kManyFloats})));
    }
  });
}

TEST_P(SendRecv, AReceivePostedEarlyNeverHoldsUpASendOrACollective) {
  NOT_ON_GPUS("has no tags: messages are received in the order of the sends");
  run_world(GetParam(), 2, [](const Communicator& world) {
    const int peer = 1 - world.rank();
    at::Tensor early = at::zeros({kManyFloats});
    Work receive = world.recv(early, peer, 7);  // both post it first: the sends come last of all
    for (int i = 0; i < 3; ++i) {
      at::Tensor sum = marked(world.rank(), {kManyFloats / 10});
      world.all_reduce(sum).wait();
      EXPECT_TRUE(same_bits(sum, marked(0, {kManyFloats / 10}) + marked(1, {kManyFloats / 10})));
      at::Tensor other = at::zeros({1000});
      Work incoming = world.recv(other, peer, 8);
      world.send(marked(world.rank() + i, {1000}), peer, 8).wait();
      incoming.wait();
      EXPECT_TRUE(same_bits(other, marked(peer + i, {1000})));
    }
    EXPECT_FALSE(receive.done());
    world.send(marked(world.rank(), {kManyFloats}), peer, 7).wait();
    receive.wait();
    EXPECT_TRUE(same_bits(early, marked(peer, {kManyFloats})));
  });
}

/// Rank 2 starts a large collective and then sends to rank 0; rank 1 comes to the collective only
/// when rank 0 has that message. Nothing in the collective may stand in the message's way.
TEST_P(SendRecv, ACollectiveThatCannotGoOnHoldsUpNoMessageBehindIt) {
  run_world(GetParam(), 3, [](const Communicator& world) {
    for (const Algorithm algorithm :
         {Algorithm::Auto, Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot}) {
      SCOPED_TRACE(to_string(algorithm));
      constexpr int64_t kCount = 3 * 1'600'000;
      at::Tensor sum = marked(world.rank(), {kCount}), note = at::zeros({1});
      Work reduce;
      if (world.rank() == 2) {
        reduce = world.all_reduce(sum, ReduceOp::Max, algorithm);
        world.send(at::ones({1}), 0, 1).wait();
      } else if (world.rank() == 0) {
        reduce = world.all_reduce(sum, ReduceOp::Max, algorithm);
        world.recv(note, 2, 1).wait();
        world.send(note, 1, 2).wait();
      } else {
        world.recv(note, 0, 2).wait();
        reduce = world.all_reduce(sum, ReduceOp::Max, algorithm);
      }
      reduce.wait();
      EXPECT_TRUE(same_bits(sum, marked(2, {kCount})));
    }
  });
}

TEST_P(SendRecv, GroupsDoNotSeeEachOthersMessages) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    const Communicator a = world.split("a", 0, world.rank()),
                       b = world.split("b", 0, -world.rank());
    const int peer = 1 - world.rank();
    ASSERT_EQ(b.rank(), peer);
    at::Tensor from_a = at::zeros({5}), from_b = at::zeros({5}), from_world = at::zeros({5});
    std::vector<Work> works;
    works.push_back(b.recv(from_b, 1 - b.rank()));
    works.push_back(world.recv(from_world, peer));
    works.push_back(a.recv(from_a, peer));
    works.push_back(a.send(marked(10 + world.rank(), {5}), peer));
    works.push_back(world.send(marked(30 + world.rank(), {5}), peer));
    works.push_back(b.send(marked(20 + world.rank(), {5}), 1 - b.rank()));
    for (Work& work : works) work.wait();
    EXPECT_TRUE(same_bits(from_a, marked(10 + peer, {5})));
    EXPECT_TRUE(same_bits(from_b, marked(20 + peer, {5})));
    EXPECT_TRUE(same_bits(from_world, marked(30 + peer, {5})));
  });
}

TEST_P(SendRecv, ARingOfRanksPassesAMessageRoundWhileCollectivesRun) {
  run_world(GetParam(), 4, [](const Communicator& world) {
    const int next = (world.rank() + 1) % world.size(),
              previous = (world.rank() + world.size() - 1) % world.size();
    at::Tensor load = marked(world.rank(), {20'000});
    for (int hop = 0; hop < 8; ++hop) {
      at::Tensor arriving = at::zeros({20'000}), sum = at::full({3'000}, world.rank() + hop);
      Work receive = world.recv(arriving, previous, hop);
      Work reduce = world.all_reduce(sum);
      Work send = world.send(load, next, hop);
      receive.wait();
      send.wait();
      reduce.wait();
      EXPECT_EQ(sum[2'999].item().toInt(), 6 + 4 * hop);
      load = arriving;
    }
    EXPECT_TRUE(same_bits(load, marked(world.rank(), {20'000})));  // eight hops: twice round
  });
}

}  // namespace
}  // namespace trireme::test
