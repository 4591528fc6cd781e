#include "trireme/comm/engine.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr int kSpins = 30;  // steps in a row that moved nothing: about a microsecond
// A futex sleep costs 40 to 50 us to come back from, a yield well under 1 us: many yields first.
constexpr int kYields = 120;
// The longest sleep. A rank that sleeps sees a failure on another host this late at worst.
constexpr auto kNap = std::chrono::milliseconds(20);
constexpr int kMoves = 256;                               // then look at failures and the clock
constexpr int kLooks = 32;                                // then look for ranks that left
constexpr auto kAtOnce = std::chrono::microseconds(100);  // between start() and wait()
constexpr auto kHearsay = std::chrono::milliseconds(300);

void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Engine::Lock::Lock(Engine& e) : engine(e) {
  if (engine.mutex_.try_lock()) return;
  engine.wanting_.fetch_add(1, std::memory_order_relaxed);
  engine.mutex_.lock();
  engine.wanting_.fetch_sub(1, std::memory_order_relaxed);
}

Engine::Lock::~Lock() {
  engine.mutex_.unlock();
}

Engine::Waiter::Waiter(Engine& e) : engine(e) {
  engine.waiters_.fetch_add(1, std::memory_order_relaxed);
}

Engine::Waiter::~Waiter() {
  engine.waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void Engine::Patience::look_found(bool moved) {
  if (moved) {
    state = DriveState::Spinning;
    yields = 0;
  } else if (yields < kYields) {
    state = DriveState::Yielding;
    ++yields;
  } else {
    state = DriveState::Sleeping;
  }
}

Engine::Engine(Messenger& messenger, Sleeper& sleeper, EngineDelegate& world, Cores cores)
    : messenger_(messenger),
      sleeper_(sleeper),
      world_(world),
      spins_(cores == Cores::Oversubscribed ? 1 : kSpins) {}

Engine::~Engine() {
  if (!helper_.joinable()) return;
  helper_.request_stop();
  sleeper_.wake();
  helper_wakes_.notify_all();
}

void Engine::start(std::shared_ptr<Task> task, Helper helper) {
  bool unfinished = false;
  bool lane_was_empty = true;
  {
    const Lock lock(*this);
    Task& started = *task;
    world_.started(started);
    if (started.ordered) {
      Lane& lane = *started.lane;
      busy_.reserve(busy_.size() + 1);  // if memory runs out, neither list may have the task
      lane.waiting.push_back(std::move(task));
      if (lane.waiting.size() == 1) {
        busy_.push_back(&lane);
        step_lane(lane);
      } else {
        lane_was_empty = false;
        helper = Helper::Wake;  // it must begin when the one before it ends, even if nobody waits
      }
    } else {
      loose_.push_back(std::move(task));
      step_all();
    }
    if (messenger_.mismatch()) look_at_failures();
    unfinished = !started.done();
    if (helper == Helper::Wake && lane_was_empty && waits_at_once(started)) helper = Helper::Rest;
  }
  if (unfinished && helper == Helper::Wake) call_helper();
}

// Waiting: the picture in engine.h.

void Task::wait(nanoseconds timeout) {
  engine->wait(*this, timeout);
}

void Engine::wait(Task& task, nanoseconds timeout) {
  if (task.may_need_helper) note_if_waited_at_once(task);
  if (!task.done()) drive_until_ended(task, timeout);
  if (task.failed_) world_.raise(task);
}

void Engine::drive_until_ended(Task& task, nanoseconds timeout) {
  Wait wait{task, timeout};
  {
    const Waiter waiter(*this);
    while (drive(wait) != DriveState::Ended) {
    }
  }
  if (wait.others_started) call_helper();  // this thread no longer steps the other tasks
}

/// Pauses as the state asks for, looks, and returns the next state.
Engine::DriveState Engine::drive(Wait& wait) {
  if (wait.patience.state != DriveState::Spinning) {
    pause(wait.patience.state, &wait.task);
    if (wait.task.done()) return DriveState::Ended;
  }
  const bool moved = look(wait);
  if (wait.task.done() || out_of_time(wait)) return DriveState::Ended;
  wait.patience.look_found(moved);
  return wait.patience.state;
}

/// What a thread does before it looks again. `task`: the one that it waits for; nullptr for the
/// helper.
void Engine::pause(DriveState state, Task* task) {
  if (state == DriveState::Yielding) ::sched_yield();
  if (state == DriveState::Sleeping) sleep(task);
}

void Engine::sleep(Task* task) {
  {
    const Lock lock(*this);
    if (task != nullptr) {
      if (task->done()) return;  // another thread has stepped it
      task->slept_on_ = true;
    }
    sleeper_.prepare(wake_condition());
    if (step_all() || look_at_failures() || nothing_started()) {
      sleeper_.cancel();
      return;
    }
  }
  sleeper_.sleep(kNap);
}

/// Steps everything and now and then looks for failures. Returns whether anything moved.
bool Engine::look(Wait& wait) {
  const Lock lock(*this);
  Task& task = wait.task;
  task.slept_on_ = false;
  const int moves =
      step_until_stuck(task, wait.patience.state == DriveState::Spinning ? spins_ : 1);
  // A failure counts at once; for ranks that left it is enough to look now and then.
  if (!task.done() && (world_.failed() || messenger_.mismatch() || ++wait.looks % kLooks == 0))
    look_at_failures();
  wait.others_started = !nothing_started();
  return moves > 0;
}

/// Steps everything until the task is done or `most_idle_steps` in a row moved nothing. Returns how
/// many steps moved something.
int Engine::step_until_stuck(const Task& task, int most_idle_steps) {
  int idle_steps = 0, moves = 0;
  while (!task.done() && idle_steps < most_idle_steps) {
    if (step_all()) {
      idle_steps = 0;
      // Other tasks may go on moving forever while this one is stuck.
      if (++moves == kMoves || wanting_.load(std::memory_order_relaxed) > 0) break;
    } else {
      ++idle_steps;
      relax_cpu();
    }
  }
  return moves;
}

/// Counts the time since the last look, and fails the world if the task took too long.
bool Engine::out_of_time(Wait& wait) {
  // Only time in which this thread could run counts: a nap that took much longer than kNap was a
  // stopped process or a suspended laptop.
  const auto now = Clock::now();
  if (wait.last_look != Clock::time_point{})
    wait.waited += std::min<nanoseconds>(now - wait.last_look, 4 * kNap);
  wait.last_look = now;
  if (wait.waited <= wait.timeout) return false;
  const Lock lock(*this);
  if (wait.task.done()) return true;
  // The missing ranks may have come and be held up themselves. Then another rank knows better who
  // is to blame, and is about to say so.
  if (!world_.failed() && !wait.task.certain() && wait.waited <= wait.timeout + kHearsay)
    return false;
  report_timeout(wait.task, wait.timeout);
  return true;
}

/// If exactly one task is pending, what it waits for. The lock is held.
WakeCondition Engine::wake_condition() const {
  if (!loose_.empty() || busy_.size() != 1 || !messenger_.idle() || waiters_.load() > 1) return {};
  return busy_.front()->waiting.front()->wake_condition();
}

// Stepping. The lock is held.

/// Steps everything once. Returns whether anything moved.
bool Engine::step_all() {
  bool moved = !messenger_.idle() && step_messenger();
  for (std::size_t i = 0; i < busy_.size();) {
    Lane& lane = *busy_[i];
    moved |= step_lane(lane);
    if (i < busy_.size() && busy_[i] == &lane) ++i;
  }
  if (!loose_.empty()) moved |= step_loose();
  return moved;
}

void Engine::step_while_moving() {
  for (int moves = 0; moves < kMoves && step_all(); ++moves) {
  }
}

bool Engine::step_messenger() {
  try {
    return messenger_.step();
  } catch (const StreamClosed& closed) {
    closed_.push_back({closed.rank, Clock::now()});
  } catch (const std::exception& error) {
    world_.report_broken(error.what());
  }
  return false;
}

/// Runs the first task of the lane as far as it goes now, and then those behind it.
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

/// Steps each send and receive once.
bool Engine::step_loose() {
  bool moved = false;
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

/// A task that throws (no memory for its buffers) ends the world, not the thread that happened to
/// step it.
Task::Step Engine::step(Task& task) {
  try {
    return task.step();
  } catch (const std::exception& error) {
    world_.report_broken(error.what());
    return Task::Step::Stuck;
  }
}

void Engine::finish(Task& task) {
  world_.finished(task);
  task.done_.store(true, std::memory_order_release);
  if (task.slept_on_) sleeper_.wake();
}

void Engine::poke() {
  const Lock lock(*this);
  step_all();
}

void Engine::watch() {
  const Lock lock(*this);
  step_while_moving();
  if (!nothing_started()) look_at_failures();
}

// The helper.

void Engine::note_if_waited_at_once(const Task& task) const {
  task.lane->waited_at_once[task.large ? 1 : 0].store(Clock::now() - task.started < kAtOnce,
                                                      std::memory_order_relaxed);
}

/// An op whose caller goes on computing needs the helper; for one that is waited for at once,
/// waking the helper is wasted time. Predicts which it will be: what the last op of this group and
/// size (small or large) was.
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
    return;  // the system has no thread left: threads that wait do the work
  }
  helper_wakes_.notify_one();
  if (helper_runs_.load()) sleeper_.wake();
}

/// The helper's thread. It does not step while another thread waits: that one steps everything and
/// calls the helper when it leaves something undone, and two would only fight for the lock.
void Engine::help(std::stop_token stop) {
  while (!stop.stop_requested()) {
    wait_for_call(stop);
    Patience patience;
    while (!stop.stop_requested() && waiters_.load(std::memory_order_relaxed) == 0 &&
           help_once(patience)) {
    }
    helper_runs_ = false;
  }
}

void Engine::wait_for_call(const std::stop_token& stop) {
  std::unique_lock lock(helper_mutex_);
  helper_wakes_.wait(lock, stop, [&] { return helper_wanted_; });
  helper_wanted_ = false;
  helper_runs_ = true;
}

/// Looks once and pauses. Returns false when nothing is left to step.
bool Engine::help_once(Patience& patience) {
  bool moved = false;
  {
    const Lock lock(*this);
    moved = step_all();
    if (!moved) look_at_failures();
    if (nothing_started()) return false;
  }
  patience.look_found(moved);
  if (moved && wanting_.load(std::memory_order_relaxed) > 0) ::sched_yield();
  pause(patience.state, nullptr);
  return true;
}

}  // namespace trireme::comm
