#include "trireme/comm/engine.h"

namespace trireme::comm {

namespace {

constexpr auto kMonitorDelay = std::chrono::milliseconds(200);  // the monitor knows why by then

/// The ranks that a task waits for. In a lane, those that hold up the first task of the line.
std::vector<int> missing_ranks_of(const Task& task) {
  if (!task.ordered || task.lane->waiting.empty()) return task.missing();
  return task.lane->waiting.front()->missing();
}

}  // namespace

void Engine::fail(Task& task) {
  task.failed_ = true;
  task.done_.store(true, std::memory_order_release);
  if (task.slept_on_) sleeper_.wake();
}

/// The world has failed, and with it everything that was started. After this the owners of the
/// tasks may free their memory. The lock is held.
void Engine::fail_all() {
  if (nothing_started()) return;
  world_.wait_until_untouched();
  for (Lane* lane : busy_) {
    for (const auto& task : lane->waiting) fail(*task);
    lane->waiting.clear();
  }
  busy_.clear();
  for (const auto& task : loose_) fail(*task);
  loose_.clear();
}

void Engine::drop(Lane& lane) {
  const Lock lock(*this);
  for (const auto& task : lane.waiting) fail(*task);
  lane.waiting.clear();
  std::erase(busy_, &lane);
}

/// Returns true if the world has failed, after it has failed every started task. The lock is held.
bool Engine::look_at_failures() {
  if (messenger_.mismatch() && !world_.failed()) world_.report_mismatch(*messenger_.mismatch());
  if (!world_.failed()) look_for_ranks_that_left();
  if (!world_.failed()) look_at_closed_streams();
  if (!world_.failed()) return false;
  // An op to which every rank has already contributed still completes: if a rank aborts right after
  // a barrier, those that see the barrier late must not fail in it.
  step_while_moving();
  fail_all();
  return true;
}

/// Fails the world if a task waits for a rank that left.
void Engine::look_for_ranks_that_left() {
  // Copies, because stepping changes the lists and may end a task that is looked at here.
  std::vector<std::shared_ptr<Task>> running = loose_;
  for (const Lane* lane : busy_) running.push_back(lane->waiting.front());
  for (const auto& task : running) {
    if (task->done() || world_.left(task->missing()).empty()) continue;
    // The rank may have done its part just before it left. It is gone now, so look once more.
    step_while_moving();
    if (task->done()) continue;
    const auto gone = world_.left(task->missing());
    if (gone.empty()) continue;
    world_.report_left(*task, gone.front());
    return;
  }
}

/// Fails the world if a stream ended and the monitor has not said why for a while.
void Engine::look_at_closed_streams() {
  std::erase_if(closed_, [&](const ClosedStream& closed) { return world_.explained(closed.rank); });
  if (closed_.empty()) return;
  const ClosedStream& first = closed_.front();
  if (std::chrono::steady_clock::now() - first.since > kMonitorDelay)
    world_.report_closed(first.rank);
}

/// Fails the world because the task took too long. The lock is held.
void Engine::report_timeout(Task& task, std::chrono::nanoseconds timeout) {
  if (!world_.failed()) world_.report_timeout(task, missing_ranks_of(task), timeout);
  look_at_failures();
}

}  // namespace trireme::comm
