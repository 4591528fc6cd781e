// The engine with a world that the test makes up: what it does when tasks throw, ranks leave in the
// middle of a look, and several threads of one rank wait.
#include "trireme/comm/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <thread>

#include "support/net_support.h"
#include "support/sanitized.h"
#include "support/sentence.h"
#include "trireme/comm/messenger.h"
#include "trireme/core/error.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using test::sentence_of;
using ::testing::HasSubstr;

constexpr auto kLong = seconds(20);

/// Sleeps until it is woken, however long it was asked to: what is never woken is a hang.
class DeepSleeper final : public Sleeper {
 public:
  void prepare(const WakeCondition&) override {
    const std::lock_guard lock(mutex_);
    woken_ = false;
    ++asleep;
  }
  void sleep(nanoseconds) override {
    std::unique_lock lock(mutex_);
    wakes_.wait_for(lock, kLong, [&] { return woken_; });
    --asleep;
  }
  void cancel() override { --asleep; }
  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    wakes_.notify_all();
  }
  std::atomic<int> asleep{0};

 private:
  std::mutex mutex_;
  std::condition_variable wakes_;
  bool woken_ = false;
};

class FakeWorld : public EngineDelegate {
 public:
  bool failed() const override { return has_failed; }
  std::vector<int> left(const std::vector<int>& ranks) const override { return on_left(ranks); }
  void report_left(const Task&, int rank) override { fail("left " + std::to_string(rank)); }
  void report_timeout(const Task&, const std::vector<int>&, nanoseconds) override { fail("late"); }
  void report_mismatch(const Mismatch&) override { fail("mismatch"); }
  bool explained(int) const override { return has_failed; }
  void report_closed(int) override { fail("closed"); }
  void report_broken(const char* what) noexcept override { fail(what); }
  void wait_until_untouched() const override { ++untouched; }
  [[noreturn]] void raise(const Task&) override { throw CommError(cause); }
  void started(Task&) override {}
  void finished(const Task&) override {}

  void fail(const std::string& why) {
    if (!has_failed) cause = why;
    has_failed = true;
  }
  std::function<std::vector<int>(const std::vector<int>&)> on_left = [](const std::vector<int>&) {
    return std::vector<int>{};
  };
  std::atomic<bool> has_failed{false};
  std::string cause;
  mutable int untouched = 0;
};

class FakeTask final : public Task {
 public:
  FakeTask(Engine& its_engine, Lane& its_lane, std::function<Step()> its_step)
      : on_step(std::move(its_step)) {
    engine = &its_engine;
    lane = &its_lane;
  }
  Step step() override { return on_step(); }
  std::vector<int> missing() const override { return {1}; }
  std::function<Step()> on_step;
};

/// Streams in which nothing ever comes but, once, the end.
class EndingStreams final : public Streams {
 public:
  int64_t write_some(int, const iovec*, int) override { return 0; }
  int64_t read_some(int rank, void*, int64_t) override {
    if (ends.exchange(false)) throw StreamClosed{rank};
    return 0;
  }
  bool ended(int) override { return true; }
  bool readable(int) override { return ends; }

  std::atomic<bool> ends{false};
};

class EngineTest : public ::testing::Test {
 protected:
  EndingStreams streams_;
  Messenger messenger_{streams_, 0, 2, [](uint64_t, uint64_t) { return std::nullopt; }, [](int) {}};
  DeepSleeper sleeper_;
  FakeWorld world_;
  Engine engine_{messenger_, sleeper_, world_, Engine::Cores::Oversubscribed};
  Lane first_{11, "first", {0, 1}, 0}, second_{12, "second", {0, 1}, 0};

  std::shared_ptr<FakeTask> start(Lane& lane, std::function<Task::Step()> step,
                                  Engine::Helper helper = Engine::Helper::Rest) {
    auto task = std::make_shared<FakeTask>(engine_, lane, std::move(step));
    engine_.start(task, helper);
    return task;
  }
};

TEST_F(EngineTest, ATaskThatThrowsEndsTheWorldAndNotTheThreadThatSteppedIt) {
  // The first step is the caller's own, the next that of the engine's thread.
  int steps = 0;
  const auto task = start(
      first_,
      [&]() -> Task::Step {
        if (++steps > 1) throw std::bad_alloc();
        return Task::Step::Stuck;
      },
      Engine::Helper::Wake);
  EXPECT_THROW(task->wait(kLong), CommError);
  EXPECT_THROW(task->wait(kLong), CommError) << "it says so again";
  EXPECT_EQ(world_.cause, std::bad_alloc().what());
  EXPECT_GE(world_.untouched, 1) << "peers are waited for before memory is given back";
}

TEST_F(EngineTest, WhatEndsWhileRanksThatLeftAreLookedForIsNotLookedAtAgain) {
  // Rank 1 seems to have left, and then turns out to have done its part. Meanwhile the other
  // communicator finishes, and drops out of the list that is being walked.
  bool looked = false;
  world_.on_left = [&](const std::vector<int>& ranks) {
    return std::exchange(looked, true) ? std::vector<int>{} : ranks;
  };
  int steps = 0;
  const auto slow =
      start(first_, [&] { return ++steps > 100 ? Task::Step::Done : Task::Step::Stuck; });
  const auto quick = start(second_, [&] { return looked ? Task::Step::Done : Task::Step::Stuck; });
  slow->wait(kLong);
  EXPECT_TRUE(quick->done());
  EXPECT_FALSE(world_.failed());
}

TEST_F(EngineTest, AThreadIsWokenWhenAnotherThreadOfItsRankStepsItsTaskToTheEnd) {
  std::atomic<bool> there = false;
  const auto task = start(first_, [&] { return there ? Task::Step::Done : Task::Step::Stuck; });
  std::jthread waiter([&] { task->wait(kLong); });
  const auto limit = std::chrono::steady_clock::now() + kLong;
  while (sleeper_.asleep == 0 && std::chrono::steady_clock::now() < limit)
    std::this_thread::yield();
  ASSERT_EQ(sleeper_.asleep, 1);
  const auto began = std::chrono::steady_clock::now();
  there = true;
  engine_.poke();
  waiter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2) << "nobody woke it";
}

TEST_F(EngineTest, AThreadWhoseTaskHasEndedDoesNotGoToSleep) {
  // The task ends in a step that another thread makes, while the waiting one yields. (Its own steps
  // are told apart by the thread that makes them.)
  const auto me = std::this_thread::get_id();
  std::atomic<int> yields = 0;
  std::atomic<bool> end = false;
  const auto task = start(first_, [&] {
    if (std::this_thread::get_id() == me) return end ? Task::Step::Done : Task::Step::Stuck;
    ++yields;
    return Task::Step::Stuck;
  });
  // Something else is pending all the time: only the end of its own task can keep it awake.
  const auto other = start(second_, [&] { return Task::Step::Stuck; });
  std::jthread waiter([&] { task->wait(kLong); });
  while (yields < 20) std::this_thread::yield();
  end = true;
  const auto began = std::chrono::steady_clock::now();
  while (!task->done()) engine_.poke();
  waiter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2) << "it slept over its own end";
  world_.fail("over");
  EXPECT_THROW(other->wait(kLong), CommError);
}

/// The stream of rank 1 ends while something is expected in it.
class ClosedStream : public EngineTest {
 protected:
  ClosedStream() {
    expected_.peer = 1;
    messenger_.receive(expected_);
    streams_.ends = true;
  }
  ~ClosedStream() override {
    engine_.locked([&] { messenger_.cancel(expected_); });  // the helper may still look
  }

  Transfer expected_;
  std::shared_ptr<FakeTask> task_ = start(first_, [] { return Task::Step::Stuck; });
};

TEST_F(ClosedStream, IsSeenWithoutHoldingUpWhoeverStepsAndTheMonitorSpeaksFirst) {
  const auto began = std::chrono::steady_clock::now();
  engine_.poke();
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(50));
  EXPECT_FALSE(streams_.ends) << "nobody looked";
  EXPECT_FALSE(world_.failed()) << world_.cause;
  world_.fail("rank 1 was killed");
  EXPECT_EQ(sentence_of<CommError>([&] { task_->wait(kLong); }), "rank 1 was killed");
}

TEST_F(ClosedStream, IsReportedWhenNobodyExplainsIt) {
  const auto began = std::chrono::steady_clock::now();
  const std::jthread waker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      sleeper_.wake();
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  EXPECT_EQ(sentence_of<CommError>([&] { task_->wait(kLong); }), "closed");
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(200));
}

/// What a peer has written so far, and what was written to it.
class Script final : public Streams {
 public:
  int64_t write_some(int, const iovec* parts, int num_parts) override {
    int64_t wrote = 0;
    for (int i = 0; i < num_parts && wrote < room; ++i)
      wrote += std::min<int64_t>(room - wrote, static_cast<int64_t>(parts[i].iov_len));
    room -= wrote;
    written += wrote;
    return wrote;
  }
  int64_t read_some(int, void* data, int64_t bytes) override {
    const int64_t count = std::min<int64_t>(bytes, static_cast<int64_t>(input.size()));
    EXPECT_GE(count, 0);
    std::memcpy(data, input.data(), static_cast<size_t>(count));
    input.erase(0, static_cast<size_t>(count));
    return count;
  }
  bool ended(int) override { return false; }
  bool readable(int) override { return true; }

  void add(const MessageHeader& header, const std::string& payload) {
    input.append(reinterpret_cast<const char*>(&header), sizeof header);
    input += payload;
  }

  std::string input;
  int64_t room = 1 << 20, written = 0;
};

class MessengerTest : public ::testing::Test {
 protected:
  static MessageHeader header(uint64_t key, uint64_t bytes) {
    MessageHeader made;
    made.key = key;
    made.bytes = made.total = bytes;
    return made;
  }
  static Transfer transfer(uint64_t key, std::string& memory) {
    Transfer made;
    made.peer = 1;
    made.header = header(key, memory.size());
    made.data = reinterpret_cast<std::byte*>(memory.data());
    return made;
  }

  Script streams_;
  Messenger messenger_{streams_, 0, 2, [](uint64_t, uint64_t) { return std::nullopt; }, [](int) {}};
};

TEST_F(MessengerTest, AMessageTakesMemoryAsItComesAndNotAsItIsAnnounced) {
  streams_.add(header(3, uint64_t{1} << 46), "");
  std::string memory(4, '?');
  Transfer other = transfer(7, memory);
  messenger_.receive(other);  // another message: the boaster's is kept aside
  const size_t before = net::testing::resident_bytes();
  for (int i = 0; i < 10; ++i) messenger_.step();
  EXPECT_TRUE(streams_.input.empty());
  if (!test::kSanitized) {
    EXPECT_LT(net::testing::resident_bytes(), before + (8 << 20));
  }
  messenger_.cancel(other);
}

TEST_F(MessengerTest, AReceiveThatIsGivenUpInTheMiddleDisturbsNobody) {
  std::string half(200'000, '?'), next(4, '?');
  Transfer first = transfer(7, half), second = transfer(8, next);
  messenger_.receive(first);
  streams_.add(header(7, half.size()), std::string(100'000, 'a'));
  messenger_.step();
  messenger_.cancel(first);
  messenger_.receive(second);
  streams_.input += std::string(100'000, 'b');
  streams_.add(header(8, next.size()), "next");
  for (int i = 0; i < 10; ++i) messenger_.step();
  EXPECT_TRUE(second.done);
  EXPECT_EQ(next, "next");
}

TEST_F(MessengerTest, NothingFollowsASendThatWasGivenUpInTheMiddle) {
  std::string data(1000, 'd'), more(10, 'm');
  Transfer first = transfer(7, data), second = transfer(8, more);
  streams_.room = 500;
  messenger_.send(first);
  messenger_.step();
  messenger_.cancel(first);
  streams_.room = 1 << 20;
  messenger_.send(second);
  messenger_.step();
  messenger_.cancel(second);
  messenger_.say_goodbye(1);
  EXPECT_EQ(streams_.written, 500) << "the peer would take it for the rest of the first";
}

}  // namespace
}  // namespace trireme::comm
