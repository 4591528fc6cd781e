#include "trireme/comm/engine.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// A futex sleep costs 40 to 50 us to come back from, a yield well under 1 us: many yields first.
constexpr int kSpins = 30;   // about a microsecond
constexpr int kMoves = 256;  // then failures and the clock get a look
constexpr int kYields = 120;
// Also how soon a failure on another host is seen by a rank that sleeps.
constexpr auto kAtOnce = std::chrono::microseconds(100);
constexpr auto kNap = std::chrono::milliseconds(20);
constexpr int kLooks = 32;
constexpr auto kExplained = std::chrono::milliseconds(200);  // the monitor knows why by then
constexpr auto kHearsay = std::chrono::milliseconds(300);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Engine::Turn::Turn(Engine& e) : engine(e) {
  if (engine.turn_.try_lock()) return;
  engine.wanting_.fetch_add(1, std::memory_order_relaxed);
  engine.turn_.lock();
  engine.wanting_.fetch_sub(1, std::memory_order_relaxed);
}

Engine::Turn::~Turn() {
  engine.turn_.unlock();
}

Engine::Engine(Messenger& messenger, Sleeper& sleeper, Watch& watch, Crowd crowd)
    : messenger_(messenger),
      sleeper_(sleeper),
      watch_(watch),
      spins_(crowd == Crowd::MoreThanCores ? 1 : kSpins) {}

Engine::~Engine() {
  if (!helper_.joinable()) return;
  helper_.request_stop();
  sleeper_.wake();
  helper_wakes_.notify_all();
}

void Engine::start(std::shared_ptr<Task> task, Helper helper) {
  bool unfinished = false;
  bool lane_alone = true;
  {
    const Turn turn(*this);
    Task& started = *task;
    watch_.started(started);
    if (started.ordered) {
      Lane& lane = *started.lane;
      busy_.reserve(busy_.size() + 1);  // both or neither, where there is no memory
      lane.waiting.push_back(std::move(task));
      if (lane.waiting.size() == 1) {
        busy_.push_back(&lane);
        step_lane(lane);
      } else {
        lane_alone = false;
        helper = Helper::Wake;  // it must begin when the one before it ends, whoever looks then
      }
    } else {
      loose_.push_back(std::move(task));
      step_all();
    }
    if (messenger_.mismatch()) look_at_failures();
    unfinished = !started.done();
    if (helper == Helper::Wake && lane_alone && waits_at_once(started)) helper = Helper::Rest;
  }
  if (unfinished && helper == Helper::Wake) call_helper();
}

/// An operation whose caller goes on computing needs the helper; one that is waited for at once
/// only pays for its waking. The group's last one of its kind, small or large, tells which it will
/// be.
bool Engine::waits_at_once(const Task& task) const {
  return task.may_need_helper &&
         task.lane->waited_at_once[task.large ? 1 : 0].load(std::memory_order_relaxed);
}

void Engine::call_helper() {
  try {
    const std::lock_guard lock(helper_mutex_);
    if (!helper_.joinable()) helper_ = std::jthread([this](std::stop_token stop) { help(stop); });
    helper_wanted_ = true;
  } catch (const std::system_error&) {
    return;  // no thread to be had: whoever waits does the work
  }
  helper_wakes_.notify_one();
  if (helper_runs_.load()) sleeper_.wake();
}

void Task::wait(nanoseconds timeout) {
  engine->wait(*this, timeout);
}

Engine::Waiter::Waiter(Engine& e) : engine(e) {
  engine.waiters_.fetch_add(1, std::memory_order_relaxed);
}

Engine::Waiter::~Waiter() {
  engine.waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void Engine::wait(Task& task, nanoseconds timeout) {
  if (task.may_need_helper)
    task.lane->waited_at_once[task.large ? 1 : 0].store(Clock::now() - task.started < kAtOnce,
                                                        std::memory_order_relaxed);
  Wait wait;
  if (!task.done()) {
    const Waiter waiter(*this);
    wait.others = true;  // the helper may have gone to sleep because this thread waits
    while (!task.done()) {
      const bool moved = spin(task, wait);
      if (task.done()) break;
      // Only time in which this thread itself ran counts: a nap that took long was a stopped
      // process or a suspended laptop.
      const auto now = Clock::now();
      if (wait.last != Clock::time_point{})
        wait.waited += std::min<nanoseconds>(now - wait.last, 4 * kNap);
      wait.last = now;
      if (timed_out(task, wait.waited, timeout)) break;
      if (moved)
        wait.round = 0;
      else
        idle(++wait.round, &task);
    }
  }
  if (wait.others) call_helper();  // what else was started goes on without this thread
  if (task.failed_) watch_.raise(task);
}

/// Steps everything until the task is done, or nothing has moved a few times in a row. Returns
/// whether anything moved.
bool Engine::spin(Task& task, Wait& wait) {
  const Turn turn(*this);
  task.slept_on_ = false;
  // After a yield one look is enough: where ranks outnumber cores, spinning keeps the very rank
  // from running that this one waits for.
  const int most_spins = wait.round == 0 ? spins_ : 1;
  int spins = 0, moves = 0;
  while (!task.done() && spins < most_spins) {
    if (step_all()) {
      spins = 0;
      // Something may always move, and not be what this task waits for.
      if (++moves == kMoves || wanting_.load(std::memory_order_relaxed) > 0) break;
    } else {
      ++spins;
      pause();
    }
  }
  // Who has left is worth a look now and then; a failure is seen at once.
  if (!task.done() && (watch_.failed() || messenger_.mismatch() || ++wait.looks % kLooks == 0))
    look_at_failures();
  wait.others = !busy_.empty() || !loose_.empty();
  return moves > 0;
}

bool Engine::timed_out(Task& task, nanoseconds waited, nanoseconds timeout) {
  if (waited <= timeout) return false;
  const Turn turn(*this);
  if (task.done()) return true;
  // Where the ranks that are missing did come, and are held up themselves, the rank that holds them
  // up is about to be named by somebody who knows better.
  if (!watch_.failed() && !task.certain() && waited <= timeout + kHearsay) return false;
  if (!watch_.failed()) watch_.report_timeout(task, missing(task), timeout);
  look_at_failures();
  return true;
}

/// Whom the task waits for: in a lane, those that hold up the first in line.
std::vector<int> Engine::missing(const Task& task) const {
  if (!task.ordered || task.lane->waiting.empty()) return task.missing();
  return task.lane->waiting.front()->missing();
}

/// Steps everything once. The turn is held.
bool Engine::step_all() {
  bool moved = false;
  if (!messenger_.idle()) {
    try {
      moved = messenger_.step();
    } catch (const StreamClosed& closed) {
      closed_.push_back({closed.rank, Clock::now()});
    } catch (const std::exception& error) {
      watch_.report_broken(error.what());
    }
  }
  for (std::size_t i = 0; i < busy_.size();) {
    Lane& lane = *busy_[i];
    moved |= step_lane(lane);
    if (i < busy_.size() && busy_[i] == &lane) ++i;
  }
  for (std::size_t i = 0; i < loose_.size();) {
    const auto task = loose_[i];
    if (step(*task) == Task::Step::Done) {
      finish(*task);
      loose_.erase(loose_.begin() + static_cast<std::ptrdiff_t>(i));
      moved = true;
    } else {
      ++i;
    }
  }
  return moved;
}

/// What a task throws (there was no memory for its buffers) ends the world, and not the thread that
/// happened to step it.
Task::Step Engine::step(Task& task) {
  try {
    return task.step();
  } catch (const std::exception& error) {
    watch_.report_broken(error.what());
    return Task::Step::Stuck;
  }
}

/// Runs the first task of the lane as far as it goes now, and those behind it.
bool Engine::step_lane(Lane& lane) {
  bool moved = false;
  while (!lane.waiting.empty()) {
    Task& task = *lane.waiting.front();
    const Task::Step progress = step(task);
    if (progress == Task::Step::Moved) return true;
    if (progress == Task::Step::Stuck) return moved;
    moved = true;
    lane.last_finished = task.number;
    const auto keep = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    if (lane.waiting.empty()) std::erase(busy_, &lane);
    finish(*keep);
  }
  return moved;
}

void Engine::finish(Task& task) {
  watch_.finished(task);
  task.done_.store(true, std::memory_order_release);
  if (task.slept_on_) sleeper_.wake();
}

void Engine::fail(Task& task) {
  task.failed_ = true;
  task.done_.store(true, std::memory_order_release);
  if (task.slept_on_) sleeper_.wake();
}

/// The world has failed: so has everything that was started in it. From here on its owners may free
/// its memory. The turn is held.
void Engine::fail_all() {
  if (busy_.empty() && loose_.empty()) return;
  watch_.wait_until_untouched();
  for (Lane* lane : busy_) {
    for (const auto& task : lane->waiting) fail(*task);
    lane->waiting.clear();
  }
  busy_.clear();
  for (const auto& task : loose_) fail(*task);
  loose_.clear();
}

/// Returns true if there is a failure, after everything started has been told. The turn is held.
bool Engine::look_at_failures() {
  if (messenger_.mismatch() && !watch_.failed()) watch_.report_mismatch(*messenger_.mismatch());
  if (!watch_.failed()) look_for_ranks_that_left();
  if (!watch_.failed()) look_at_closed_streams();
  if (!watch_.failed()) return false;
  // What everybody has already done their part of still completes: the last barrier before a rank
  // gave up, seen late, is no failure.
  for (int moves = 0; moves < kMoves && step_all(); ++moves) {
  }
  fail_all();
  return true;
}

/// A rank that left can no longer do what is still missing of it.
void Engine::look_for_ranks_that_left() {
  // Copies: stepping changes the lists, and what is looked at here must outlive that.
  std::vector<std::shared_ptr<Task>> running = loose_;
  for (const Lane* lane : busy_) running.push_back(lane->waiting.front());
  for (const auto& task : running) {
    if (task->done() || watch_.left(task->missing()).empty()) continue;
    // It may have done its part just before it left: look again, now that it is known to be gone.
    for (int moves = 0; moves < kMoves && step_all(); ++moves) {
    }
    if (task->done()) continue;
    const auto gone = watch_.left(task->missing());
    if (gone.empty()) continue;
    watch_.report_left(*task, gone.front());
    return;
  }
}

/// A stream that ended has a reason, and the monitor is about to know it: it speaks first.
void Engine::look_at_closed_streams() {
  std::erase_if(closed_, [&](const Closed& closed) { return watch_.explained(closed.rank); });
  if (!closed_.empty() && Clock::now() - closed_.front().since > kExplained)
    watch_.report_closed(closed_.front().rank);
}

/// If exactly one thing is pending, what it waits for. The turn is held.
Hint Engine::hint() const {
  if (!loose_.empty() || busy_.size() != 1 || !messenger_.idle() || waiters_.load() > 1) return {};
  return busy_.front()->waiting.front()->hint();
}

/// Yields, and after many rounds sleeps. `task`: what this thread waits for, if it is not the
/// helper.
void Engine::idle(int round, Task* task) {
  if (round <= kYields) {
    ::sched_yield();
    return;
  }
  {
    const Turn turn(*this);
    if (task != nullptr) {
      if (task->done()) return;  // another thread has stepped it
      task->slept_on_ = true;
    }
    sleeper_.prepare(hint());
    if (step_all() || look_at_failures() || (busy_.empty() && loose_.empty())) {
      sleeper_.cancel();
      return;
    }
  }
  sleeper_.sleep(kNap);
}

/// The engine's own thread: steps while something is started and nobody waits.
void Engine::help(std::stop_token stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(helper_mutex_);
      helper_wakes_.wait(lock, stop, [&] { return helper_wanted_; });
      helper_wanted_ = false;
      helper_runs_ = true;
    }
    int round = 0;
    // A waiting thread steps everything, and calls again when it leaves something undone: two would
    // only fight for the turn.
    while (!stop.stop_requested() && waiters_.load(std::memory_order_relaxed) == 0) {
      bool moved = false;
      {
        const Turn turn(*this);
        moved = step_all();
        if (!moved) look_at_failures();
        if (busy_.empty() && loose_.empty()) break;
      }
      if (!moved)
        idle(++round, nullptr);
      else if (wanting_.load(std::memory_order_relaxed) > 0)
        ::sched_yield();
      if (moved) round = 0;
    }
    helper_runs_ = false;
  }
}

void Engine::poke() {
  const Turn turn(*this);
  step_all();
}

void Engine::drop(Lane& lane) {
  const Turn turn(*this);
  for (const auto& task : lane.waiting) fail(*task);
  lane.waiting.clear();
  std::erase(busy_, &lane);
}

}  // namespace trireme::comm
