#include "trireme/comm/nccl/channel.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::comm::nccl {

namespace {

using Clock = std::chrono::steady_clock;

/// Waits a little longer each time, up to 1 ms.
void pause(int round) {
  if (round < 50)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(round < 200 ? 50 : 1000));
}

}  // namespace

std::timed_mutex& launch_lock() {
  static std::timed_mutex mutex;
  return mutex;
}

Channel::Channel(std::shared_ptr<GroupBackend> host, Members members, c10::Device device,
                 Sharing sharing)
    : host_(std::move(host)),
      members_(std::move(members)),
      device_(device),
      sharing_(sharing),
      stream_(device) {}

Channel::~Channel() = default;

namespace {

bool has_transfers(const std::vector<Call>& calls) {
  return std::ranges::any_of(calls, [](const Call& call) {
    return call.kind == Call::Kind::Send || call.kind == Call::Kind::Recv;
  });
}

}  // namespace

bool Channel::connects(const std::vector<Call>& calls) const {
  const std::lock_guard lock(mutex_);
  return state_ == State::New || (!is_pair() && !pairs_connected_ && has_transfers(calls));
}

void Channel::start(const std::shared_ptr<Flight>& flight, const std::function<void()>& behind_it) {
  const std::lock_guard lock(mutex_);
  flights_.push_back(flight);
  advance();
  behind_it();
}

void Channel::watch(const std::shared_ptr<Flight>& flight) {
  const std::lock_guard lock(mutex_);
  flight->state = Flight::State::Launched;
  flights_.push_back(flight);
}

void Channel::start_captured(const std::shared_ptr<Flight>& flight) {
  wait_until_ready();
  const std::lock_guard lock(mutex_);
  captured_ = true;
  flights_.push_back(flight);
  // No other thread may finish the launch: the stream is part of this thread's capture.
  const auto until = Clock::now() + flight->timeout;
  for (int round = 0; flight->state == Flight::State::Queued; ++round) {
    advance();
    if (flight->state != Flight::State::Queued) break;
    if (world().failed() || Clock::now() > until) fail("an op could not be captured into a graph");
    if (state_ == State::Broken) break;
    pause(round);
  }
  if (flight->state == Flight::State::Launched) flight->state = Flight::State::Captured;
}

void Channel::finish_launch(Flight& flight) {
  if (flight.state != Flight::State::Queued) return;
  wait_while([&] { return flight.state == Flight::State::Queued; }, flight.info, flight.number);
}

void Channel::wait_until_ready() {
  core::OpInfo info;
  info.set_name("nccl");
  const auto until = Clock::now() + host_->timeout();
  wait_while(
      [&] {
        if (state_ == State::New) meet();
        if (Clock::now() > until && !world().failed())
          world().fail({CauseKind::Timeout, -1,
                        fmt::format("NCCL did not connect the ranks of '{}' in {}",
                                    host_->lane().name, core::format_duration(host_->timeout()))});
        return state_ != State::Ready || has_queued();
      },
      info, 0);
}

/// Drives the channel until `busy` is false; it is asked under the lock. Throws if the world fails.
void Channel::wait_while(const std::function<bool()>& busy, const core::OpInfo& info,
                         uint64_t number) {
  for (int round = 0;; ++round) {
    {
      const std::lock_guard lock(mutex_);
      advance();
      if (!busy()) return;
      report_error();
    }
    if (world().failed()) host_->check(info, number);
    host_->step();  // the messages with the id
    pause(round);
  }
}

bool Channel::check_finished(Flight& flight) const {
  if (flight.state == Flight::State::Finished) return true;
  if (flight.state != Flight::State::Launched || aborted_) return false;
  try {
    if (!flight.done.query()) return false;
  } catch (const c10::Error&) {
    if (world().failed()) return false;
    throw;
  }
  flight.state = Flight::State::Finished;
  return true;
}

bool Channel::finished(Flight& flight) {
  if (flight.state == Flight::State::Finished) return true;
  const std::lock_guard lock(mutex_);
  advance();
  return check_finished(flight);
}

void Channel::settle(Flight& flight) {
  constexpr auto kMost = std::chrono::milliseconds(800);
  const auto until = Clock::now() + kMost;
  for (int round = 0; Clock::now() < until; ++round) {
    {
      const std::lock_guard lock(mutex_);
      if (flight.state == Flight::State::Queued) flight.state = Flight::State::Cancelled;
      if (flight.state != Flight::State::Launched) return;
      try {
        if (flight.done.query()) return;
      } catch (const c10::Error&) {
        return;  // the GPU has failed, and works on nothing any more
      }
    }
    pause(round);
  }
}

// Driving. The lock is held.

void Channel::advance() {
  if (!has_queued() && (state_ == State::Ready || state_ == State::New)) return;  // the usual case
  if (world().failed()) return;
  try {
    while (step()) {
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

/// Goes on by one state, or launches one op. Returns false if that cannot be done now.
bool Channel::step() {
  switch (state_) {
    case State::New: meet(); return true;
    case State::Meeting:
      if (!messages_.front()->done()) return false;
      init_communicator();
      return true;
    case State::Initializing:
      if (!poll()) return false;
      state_ = State::Ready;
      return true;
    case State::Ready: return launch_next();
    case State::Finalizing:
    case State::Broken: return false;
  }
  return false;
}

/// Whether what runs in the background is done. Throws if it failed.
bool Channel::poll() {
  if (!background_->done) return false;
  const auto ended = std::move(background_);
  comm_ = ended->comm;
  if (!ended->error.empty()) throw CommError(ended->error);
  return true;
}

/// Throws if an op of NCCL has failed after it was launched.
void Channel::look_for_errors() {
  const Library& nccl = Library::get();
  int state = Library::kSuccess;
  nccl.check("ncclCommGetAsyncError", nccl.state(comm_, &state), comm_);
  nccl.check("an op", state, comm_);
}

/// Launches the oldest op that is queued. Returns whether there was one and it is launched.
bool Channel::launch_next() {
  for (const auto& flight : flights_) {
    if (flight->state != Flight::State::Queued) continue;
    if (!is_pair() && !pairs_connected_ && has_transfers(flight->calls)) {
      connect_pairs();
      return true;
    }
    const c10::DeviceGuard guard(device_);
    flight->ready.block(stream_.get());
    int result = Library::kSuccess;
    if (!flight->calls.empty()) {
      const std::lock_guard launching(launch_lock());
      result = make_calls(flight->calls, flight->in, flight->out, comm_, stream_.handle());
    }
    Library::get().check("an op", result, comm_);
    launched(*flight);
    return true;
  }
  return false;
}

void Channel::launched(Flight& flight) {
  const c10::DeviceGuard guard(device_);
  flight.done.record(stream_.get());
  flight.state = Flight::State::Launched;
}

void Channel::fail(const std::string& what) {
  state_ = State::Broken;
  if (!error_.empty()) return;
  error_ = what;
  error_since_ = Clock::now();
}

}  // namespace trireme::comm::nccl
