// Many threads in comm/ at once, for ThreadSanitizer to watch. The numbers are checked too: a race
// that it misses may still show there.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "trireme/core/error.h"
#include "tsan/plain_group.h"

namespace trireme::test {
namespace {

using core::Algorithm;

std::vector<float> numbers(int rank, int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count));
  std::iota(data.begin(), data.end(), static_cast<float>(rank * 1000));
  return data;
}

/// Of numbers(0) ... numbers(size - 1), at the ends and in the middle.
void expect_sum(const float* data, int64_t count, int size, const char* what) {
  for (const int64_t i : {int64_t{0}, count / 2, count - 1}) {
    const auto expected = static_cast<float>(size * i + 1000 * size * (size - 1) / 2);
    ASSERT_EQ(data[i], expected) << what << ", element " << i << " of " << count;
  }
}

const std::vector<int64_t> kCounts = {1, 20, 900, 5'000, 40'000, 150'000};

void reduce_by_every_algorithm(PlainGroup world) {
  for (int round = 0; round < 3; ++round) {
    for (const Algorithm algorithm : {Algorithm::Auto, Algorithm::OneShot, Algorithm::Direct,
                                      Algorithm::Ring, Algorithm::Tree}) {
      for (const int64_t count : kCounts) {
        auto data = numbers(world.rank(), count);
        wait(world.all_reduce(data.data(), count, algorithm));
        expect_sum(data.data(), count, world.size(), "all_reduce");
      }
    }
  }
}

/// Each rank has several threads, each with a group of its own, reducing and exchanging messages.
void talk_in_several_threads(PlainGroup world) {
  std::vector<PlainGroup> groups;
  for (int i = 0; i < 3; ++i)
    groups.push_back(world.split("thread " + std::to_string(i), 0, world.rank()));
  std::vector<std::jthread> threads;
  for (PlainGroup& group : groups) {
    threads.emplace_back([&group] {
      try {
        const int next = (group.rank() + 1) % group.size(),
                  previous = (group.rank() + group.size() - 1) % group.size();
        for (int i = 0; i < 25; ++i) {
          const int64_t count = kCounts[static_cast<std::size_t>(i) % 5];
          auto data = numbers(group.rank(), count), sent = numbers(group.rank() + i, 300),
               got = numbers(0, 300);
          const auto receive = group.recv(got.data(), 300, previous, i);
          const auto reduce = group.all_reduce(data.data(), count);
          const auto send = group.send(sent.data(), 300, next, i);
          wait(reduce);
          wait(send);
          wait(receive);
          expect_sum(data.data(), count, group.size(), "all_reduce in a thread");
          ASSERT_EQ(got, numbers(previous + i, 300));
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "a thread threw: " << error.what();
      }
    });
  }
}

/// Many started, large enough that the engine's own thread takes part, waited for in reverse.
void start_many_and_wait_in_reverse(PlainGroup world) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> data;
    std::vector<PlainGroup::Started> works;
    for (int i = 0; i < 12; ++i) {
      data.push_back(numbers(world.rank(), i % 3 == 0 ? 150'000 : 300 * (i + 1)));
      works.push_back(
          world.all_reduce(data.back().data(), static_cast<int64_t>(data.back().size())));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) wait(*work);
    for (const auto& one : data)
      expect_sum(one.data(), static_cast<int64_t>(one.size()), world.size(), "started early");
  }
}

TEST(LocalStress, ReducesByEveryAlgorithm) {
  for (const int size : {2, 4}) run_local(size, reduce_by_every_algorithm);
}

TEST(LocalStress, TalksInSeveralThreadsOfEveryRank) {
  run_local(3, talk_in_several_threads);
}

TEST(LocalStress, StartsManyAndWaitsInReverse) {
  run_local(3, start_many_and_wait_in_reverse);
}

TEST(LocalStress, GathersAndBroadcastsBetweenPrivateMemory) {
  run_local(3, [](PlainGroup world) {
    for (int i = 0; i < 40; ++i) {
      const int64_t count = kCounts[static_cast<std::size_t>(i) % kCounts.size()];
      const auto mine = numbers(world.rank(), count);
      std::vector<float> all(static_cast<std::size_t>(3 * count));
      wait(world.all_gather(all.data(), mine.data(), count));
      ASSERT_EQ(all[static_cast<std::size_t>(2 * count)], 2000.f);
      auto data = numbers(world.rank(), count);
      wait(world.broadcast(data.data(), count, i % 3));
      ASSERT_EQ(data, numbers(i % 3, count));
    }
  });
}

TEST(LocalStress, AllocatesReducesInPlaceAndLetsGo) {
  run_local(3, [](PlainGroup world) {
    for (int i = 0; i < 30; ++i) {
      const int64_t count = kCounts[static_cast<std::size_t>(i) % kCounts.size()];
      const auto data = world.allocate(count);
      std::iota(data.get(), data.get() + count, static_cast<float>(world.rank() * 1000));
      wait(world.all_reduce(data.get(), count));
      expect_sum(data.get(), count, 3, "in place");
    }
  });
}

TEST(LocalStress, AnAbortReachesRanksThatWait) {
  for (int round = 0; round < 10; ++round) {
    run_local(3, [&](PlainGroup world) {
      if (world.rank() == round % 3) {
        // In the middle of whatever the others are in by then.
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        world.abort("enough");
        return;
      }
      std::vector<float> data(static_cast<std::size_t>(round % 2 ? 100 : 100'000));
      EXPECT_THROW(wait(world.all_reduce(data.data(), static_cast<int64_t>(data.size()))),
                   CommError);
    });
  }
}

TEST(LocalStress, ARankThatLeavesAndRanksThatDisagreeAreNamed) {
  for (int round = 0; round < 10; ++round) {
    run_local(3, [&](PlainGroup world) {
      if (world.rank() == 2) return;  // leaves at once
      std::vector<float> data(500);
      EXPECT_THROW(wait(world.all_reduce(data.data(), 500)), CommError);
    });
    run_local(3, [&](PlainGroup world) {
      std::vector<float> data(500);
      EXPECT_THROW(
          {
            wait(world.all_reduce(data.data(), world.rank() == round % 3 ? 400 : 500));
            world.barrier();
          },
          CommError);
    });
  }
}

TEST(TcpStress, ReducesByEveryAlgorithm) {
  run_tcp(3, reduce_by_every_algorithm);
}

TEST(TcpStress, TalksInSeveralThreadsOfEveryRank) {
  run_tcp(3, talk_in_several_threads);
}

TEST(TcpStress, StartsManyAndWaitsInReverse) {
  run_tcp(2, start_many_and_wait_in_reverse);
}

}  // namespace
}  // namespace trireme::test
