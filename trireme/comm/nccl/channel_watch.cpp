// What the watcher does with a channel: time, failures, the end.
#include <algorithm>

#include "trireme/comm/nccl/channel.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::comm::nccl {

namespace {

using Clock = std::chrono::steady_clock;

/// If a peer dies, NCCL may notice before the monitor does; but the monitor can say who it was.
constexpr auto kMonitorDelay = std::chrono::milliseconds(200);

}  // namespace

bool Channel::is_busy() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  // A graph may be replayed at any time: its kernels must be ended, too, if the world fails.
  return captured_ || !flights_.empty() || !error_.empty() || state_ == State::Meeting ||
         state_ == State::Initializing;
}

bool Channel::has_flights() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return !lock.owns_lock() || !flights_.empty();
}

void Channel::look(std::chrono::nanoseconds elapsed) {
  // Who holds the lock may be stuck in NCCL, and only the watcher can get it out: it must not wait.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  advance();
  try {
    compare_when_known();
    forget_finished();
    if (state_ == State::Ready && comm_ != nullptr && !flights_.empty()) look_for_errors();
    if (!world().failed()) count_time(elapsed);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (!world().failed()) report_error();
}

void Channel::compare_when_known() {
  for (const auto& flight : flights_) {
    if (!flight->compare || !flight->sentinel->done() || world().failed()) continue;
    flight->compare();
    flight->compare = nullptr;
  }
}

void Channel::forget_finished() {
  const auto ended = [&](const std::shared_ptr<Flight>& flight) {
    const bool over = flight->state == Flight::State::Captured ||
                      flight->state == Flight::State::Cancelled || check_finished(*flight);
    return over && (!flight->sentinel || flight->sentinel->done());
  };
  while (!flights_.empty() && ended(flights_.front())) flights_.pop_front();
}

/// Only the time of the first one counts, from when the GPU has reached it: those behind it wait
/// for it, and computing before it is not waiting.
void Channel::count_time(std::chrono::nanoseconds elapsed) {
  if (flights_.empty()) return;
  Flight& first = *flights_.front();
  // A broadcast may be over on this GPU while a peer has not even started it: that is waiting, too.
  const bool waits_for_peer = first.sentinel && !first.sentinel->done();
  if (first.state == Flight::State::Captured) return;
  if (first.state == Flight::State::Finished && !waits_for_peer) return;
  if (!first.ready.query()) return;
  first.waited += elapsed;
  if (first.waited > first.timeout) report_timeout(first);
}

void Channel::report_timeout(Flight& flight) {
  World& all = world();
  all.engine().locked([&] {
    if (all.failed()) return;
    std::vector<int> missing;
    if (flight.sentinel && !flight.sentinel->done()) {
      const Lane& lane = *flight.sentinel->lane;
      const bool queued = flight.sentinel->ordered && !lane.waiting.empty();
      missing = queued ? lane.waiting.front()->missing() : flight.sentinel->missing();
    } else if (is_pair()) {
      const auto peer = static_cast<std::size_t>(members_.ranks[members_.rank == 0 ? 1 : 0]);
      missing = {host_->lane().members[peer]};
    }
    if (!missing.empty() && flight.sentinel)
      return all.report_timeout(*flight.sentinel, missing, flight.timeout);
    all.fail({CauseKind::Timeout, -1,
              fmt::format("{} started {} #{} on '{}' together with all others, but its GPU did not "
                          "finish it in {}",
                          all.describe(all.rank()), core::to_string(flight.info), flight.number,
                          host_->lane().name, core::format_duration(flight.timeout))});
  });
}

void Channel::report_error() {
  if (error_.empty() || Clock::now() - error_since_ < kMonitorDelay) return;
  world().fail({CauseKind::Aborted, world().rank(),
                fmt::format("{} cannot go on with '{}': {}", world().describe(world().rank()),
                            host_->lane().name, error_)});
}

Library::Comm Channel::take_for_abort() {
  // A thread that is stuck in NCCL holds the lock, and the abort is what gets it out.
  const std::unique_lock lock(mutex_, std::chrono::milliseconds(200));
  aborted_ = true;
  state_ = State::Broken;
  Library::Comm comm = comm_;
  comm_ = nullptr;
  // A communicator that NCCL is connecting or ending on a thread of ours is left alone: an abort
  // would free it under that thread. Nobody waits for the thread, and no kernel of ours runs yet,
  // or any more.
  return comm;
}

bool Channel::step_destruction() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (state_ == State::Broken) return true;
  const bool connecting = state_ == State::Meeting || state_ == State::Initializing;
  if (state_ == State::Finalizing) return poll();
  if (!flights_.empty() || connecting) return false;
  if (comm_ == nullptr) return true;
  run_in_background([comm = comm_](Background& job) {
    job.comm = comm;
    const Library& nccl = Library::get();
    nccl.check("ncclCommFinalize", nccl.finalize(comm), comm);
    nccl.destroy(comm);
    job.comm = nullptr;
  });
  comm_ = nullptr;
  state_ = State::Finalizing;
  return false;
}

void Channel::drop_flights() {
  const std::unique_lock lock(mutex_, std::chrono::milliseconds(200));
  if (!lock.owns_lock()) return;
  for (const auto& flight : flights_) {
    if (flight->state == Flight::State::Queued) flight->state = Flight::State::Cancelled;
  }
  flights_.clear();
}

}  // namespace trireme::comm::nccl
