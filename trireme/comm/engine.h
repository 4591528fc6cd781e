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

/// How a rank of a world sleeps until something may have changed, and is woken.
class Sleeper {
 public:
  virtual ~Sleeper() = default;

  /// Announces that this thread is about to sleep. The engine then looks once more, so that no
  /// change falls between the look and the sleep.
  virtual void prepare(const Hint& hint) = 0;
  virtual void sleep(std::chrono::nanoseconds most) = 0;
  virtual void cancel() = 0;

  /// From any thread of this rank: whoever sleeps looks again.
  virtual void wake() = 0;
};

/// What the engine asks of the world that it drives.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual bool failed() const = 0;
  /// Ranks, of those given, that have left.
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

/// Steps every started operation of a world. Ops are state machines and none blocks a thread:
/// whoever waits for one steps them all, so a small op costs no thread hop; a thread of the
/// engine's own (the helper) does it while nobody waits.
///
///   start()  ->  lane: [running, queued, queued]  --step-->  done
///   start()  ->  loose: {send, recv, ...}         --step-->  done
///
/// A thread that waits goes through three states, because ranks may outnumber cores:
///
///              nothing moves       after 120 yields
///   spinning ----------------> yielding ----------> sleeping
///      ^                          |                    |  woken, or after 20 ms
///      \------ something moves ---/--------------------/
///
/// It holds the turn (the right to step) only while it spins.
class Engine {
 public:
  /// Where ranks outnumber cores, a rank that spins keeps the one that it waits for from running.
  enum class Crowd : uint8_t { FewerThanCores, MoreThanCores };
  Engine(Messenger& messenger, Sleeper& sleeper, Watch& watch, Crowd crowd);
  ~Engine();

  /// Starts a collective in the order of its lane, or a send or receive at once. Wake: it is large
  /// enough that the engine's thread should begin with it while the caller does something else.
  enum class Helper : uint8_t { Rest, Wake };
  void start(std::shared_ptr<Task> task, Helper helper);

  /// Returns when the task is done. Throws what the world failed with, or TimeoutError.
  void wait(Task& task, std::chrono::nanoseconds timeout);

  /// Steps everything once.
  void poke();

  /// Ends what a lane still runs: its communicator is going away.
  void drop(Lane& lane);

  /// Runs `body` while nothing is being stepped.
  template <class Body>
  auto locked(Body body) {
    const Turn turn(*this);
    return body();
  }

 private:
  /// The right to step. Whoever holds it longer than a moment looks whether others want it.
  struct Turn {
    explicit Turn(Engine& engine);
    ~Turn();
    Engine& engine;
  };
  /// A thread inside wait(), which steps everything meanwhile.
  struct Waiter {
    explicit Waiter(Engine& engine);
    ~Waiter();
    Engine& engine;
  };
  /// A stream that ended for no reason known yet.
  struct Closed {
    int rank;
    std::chrono::steady_clock::time_point since;
  };
  /// How far a call of wait() is.
  struct Wait {
    std::chrono::nanoseconds waited{0};
    std::chrono::steady_clock::time_point last = {};
    int round = 0;        ///< yields and naps since something moved
    int looks = 0;        ///< at what may have failed
    bool others = false;  ///< more than this task is started
  };

  bool spin(Task& task, Wait& wait);
  bool step_all();
  bool step_lane(Lane& lane);
  Task::Step step(Task& task);
  std::vector<int> missing(const Task& task) const;
  void finish(Task& task);
  void fail(Task& task);
  void fail_all();
  bool look_at_failures();
  void look_for_ranks_that_left();
  void look_at_closed_streams();
  bool timed_out(Task& task, std::chrono::nanoseconds waited, std::chrono::nanoseconds timeout);
  Hint hint() const;
  void idle(int round, Task* task);
  bool waits_at_once(const Task& task) const;
  void call_helper();
  void help(std::stop_token stop);

  Messenger& messenger_;
  Sleeper& sleeper_;
  Watch& watch_;
  const int spins_;

  std::recursive_mutex
      turn_;  ///< recursive: a task may end, and cancel its transfers, inside a turn
  std::atomic<int> wanting_{0};  ///< threads that want the turn
  std::atomic<int> waiters_{0};  ///< threads inside wait()
  std::vector<Lane*> busy_;      ///< lanes with something started
  std::vector<std::shared_ptr<Task>> loose_;
  std::vector<Closed> closed_;

  std::mutex helper_mutex_;
  std::condition_variable_any helper_wakes_;
  bool helper_wanted_ = false;
  std::atomic<bool> helper_runs_{false};
  std::jthread helper_;
};

}  // namespace trireme::comm
