#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trireme/comm/lane.h"
#include "trireme/comm/messenger.h"
#include "trireme/comm/task.h"

namespace trireme::comm {

/// Puts a rank of a world to sleep until something may have changed, and wakes it.
class Sleeper {
 public:
  virtual ~Sleeper() = default;

  /// Announces that this thread is about to sleep. The engine then looks once more, so that it
  /// misses no change between its last look and the sleep.
  virtual void prepare(const WakeCondition& condition) = 0;
  virtual void sleep(std::chrono::nanoseconds most) = 0;
  virtual void cancel() = 0;

  /// Any thread of this rank may call it: a thread that sleeps wakes and looks again.
  virtual void wake() = 0;
};

/// What the engine asks of its world, and reports to it.
class EngineDelegate {
 public:
  virtual ~EngineDelegate() = default;
  virtual bool failed() const = 0;
  /// Those of the given ranks that have left.
  virtual std::vector<int> left(const std::vector<int>& ranks) const = 0;
  virtual void report_left(const Task& task, int rank) = 0;
  virtual void report_timeout(const Task& task, const std::vector<int>& missing,
                              std::chrono::nanoseconds waited) = 0;
  virtual void report_mismatch(const Mismatch& mismatch) = 0;
  /// The stream of that rank has ended. Is it known why (it left, or the world has failed)?
  virtual bool explained(int rank) const = 0;
  virtual void report_closed(int rank) = 0;
  virtual void report_broken(const char* what) noexcept = 0;
  /// The world has failed. Returns when no peer works in this rank's memory any more.
  virtual void wait_until_untouched() const = 0;
  [[noreturn]] virtual void raise(const Task& task) = 0;
  virtual void started(Task& task) = 0;
  virtual void finished(const Task& task) = 0;
};

/// Steps every started operation of a world. An op is a state machine that never blocks a thread.
/// A thread that waits for one op steps all of them, so a small op costs no thread switch. A thread
/// of the engine (the helper) steps them while nobody waits.
///
///   start()  ->  lane: [running, queued, queued]  --step-->  done
///   start()  ->  loose: {send, recv, ...}         --step-->  done
///
/// A thread inside wait() is in one of these states. Ranks may outnumber cores, so a thread whose
/// op is stuck must soon leave its core to the rank that it waits for:
///
///             nothing moved              nothing moved
///             in 30 steps                after 120 yields
///   Spinning -------------> Yielding ------------------> Sleeping --\  woken, or after 20 ms,
///     ^  ^                   |    ^ |                     |    ^    |  and nothing moved
///     |  |                   |    \-/ nothing moved       |    \----/
///     |  \-- something moved-/                            |
///     \----- something moved -----------------------------/
///
///   any of them -- the op is done, or its time is up --> Ended
///
/// In each state the thread looks: it takes the engine's lock, steps everything, and releases the
/// lock. Yielding calls sched_yield() before each look; Sleeping sleeps before it. A look of
/// Spinning ends after 30 steps in a row that moved nothing (one if ranks outnumber cores), a look
/// of the other states after one step.
///
/// The helper rests until it is called. It then goes through the same states, but always steps once
/// per look, until nothing is left to step or another thread waits.
class Engine {
 public:
  /// Where ranks outnumber cores, a rank that spins keeps the one that it waits for from running.
  enum class Cores : uint8_t { OnePerRank, Oversubscribed };
  Engine(Messenger& messenger, Sleeper& sleeper, EngineDelegate& world, Cores cores);
  ~Engine();

  /// Queues a collective in its lane, or starts a send or receive at once. Wake: the op is large
  /// enough that the helper should begin with it while the caller does something else.
  enum class Helper : uint8_t { Rest, Wake };
  void start(std::shared_ptr<Task> task, Helper helper);

  /// Returns when the task is done. Throws what the world failed with, or TimeoutError.
  void wait(Task& task, std::chrono::nanoseconds timeout);

  /// Steps everything once.
  void poke();

  /// Steps everything and looks for failures, for a thread that watches ops for which nobody waits.
  void watch();

  /// Fails what a lane still runs: its communicator is being destroyed.
  void drop(Lane& lane);

  /// Runs `body` while nothing is being stepped.
  template <class Body>
  auto locked(Body body) {
    const Lock lock(*this);
    return body();
  }

 private:
  /// The state of a thread that drives the engine; drawn above.
  enum class DriveState : uint8_t { Spinning, Yielding, Sleeping, Ended };

  /// Holds the engine's mutex. A holder that steps many times looks whether others want it.
  struct Lock {
    explicit Lock(Engine& engine);
    ~Lock();
    Engine& engine;
  };
  /// Counts a thread inside wait(), which steps everything meanwhile.
  struct Waiter {
    explicit Waiter(Engine& engine);
    ~Waiter();
    Engine& engine;
  };
  /// A stream that ended for a reason not known yet.
  struct ClosedStream {
    int rank;
    std::chrono::steady_clock::time_point since;
  };
  /// Decides between Spinning, Yielding and Sleeping by what the last look found.
  struct Patience {
    DriveState state = DriveState::Spinning;
    int yields = 0;  ///< since something moved
    void look_found(bool moved);
  };
  /// One call of wait().
  struct Wait {
    Task& task;
    const std::chrono::nanoseconds timeout;
    Patience patience = {};
    std::chrono::nanoseconds waited{0};
    std::chrono::steady_clock::time_point last_look = {};
    int looks = 0;
    bool others_started = true;  ///< true at first: the helper may rest because of this thread
  };

  // Waiting. `drive` makes one transition of the picture.
  void note_if_waited_at_once(const Task& task) const;
  void drive_until_ended(Task& task, std::chrono::nanoseconds timeout);
  DriveState drive(Wait& wait);
  void pause(DriveState state, Task* task);
  void sleep(Task* task);
  bool look(Wait& wait);
  int step_until_stuck(const Task& task, int most_idle_steps);
  bool out_of_time(Wait& wait);
  WakeCondition wake_condition() const;

  // Stepping.
  bool step_all();
  void step_while_moving();
  bool step_messenger();
  bool step_lane(Lane& lane);
  bool step_loose();
  Task::Step step(Task& task);
  bool nothing_started() const { return busy_.empty() && loose_.empty(); }
  void finish(Task& task);

  // Failing (engine_failures.cpp).
  void fail(Task& task);
  void fail_all();
  bool look_at_failures();
  void look_for_ranks_that_left();
  void look_at_closed_streams();
  void report_timeout(Task& task, std::chrono::nanoseconds timeout);

  // The helper.
  bool waits_at_once(const Task& task) const;
  void call_helper();
  void help(std::stop_token stop);
  void wait_for_call(const std::stop_token& stop);
  bool help_once(Patience& patience);

  Messenger& messenger_;
  Sleeper& sleeper_;
  EngineDelegate& world_;
  const int spins_;

  /// Recursive: a task may be destroyed, and cancel its transfers, while its engine steps.
  std::recursive_mutex mutex_;
  std::atomic<int> wanting_{0};  ///< threads that want the mutex
  std::atomic<int> waiters_{0};  ///< threads inside wait()
  std::vector<Lane*> busy_;      ///< lanes with something started
  std::vector<std::shared_ptr<Task>> loose_;
  std::vector<ClosedStream> closed_;

  std::mutex helper_mutex_;
  std::condition_variable_any helper_wakes_;
  bool helper_wanted_ = false;
  std::atomic<bool> helper_runs_{false};
  std::jthread helper_;
};

}  // namespace trireme::comm
