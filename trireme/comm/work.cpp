#include "trireme/comm/work.h"

#include <algorithm>
#include <thread>

namespace trireme::comm {

namespace {

/// How long an operation may take to end while an exception unwinds the stack: long enough for one
/// that all ranks have come to.
constexpr auto kUnwinding = std::chrono::milliseconds(200);

}  // namespace

Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  finish();
  state_ = std::move(other.state_);
  return *this;
}

Work::~Work() {
  finish();
}

void Work::wait() {
  if (!state_) return;
  if (state_->error) std::rethrow_exception(state_->error);
  if (state_->waited) return;
  try {
    for (const auto& pending : state_->pending) pending->wait(state_->timeout);
    for (auto& [to, from] : state_->copy_back) to.copy_(from, /*non_blocking=*/true);
    state_->waited = true;
  } catch (...) {
    state_->error = std::current_exception();
    throw;
  }
}

void Work::synchronize() {
  wait();
  // Reading one element back waits for the stream that the copy was put on.
  if (state_ && !state_->copy_back.empty())
    (void)state_->copy_back.back().first.flatten().slice(0, 0, 1).cpu();
}

bool Work::ended() const {
  return std::all_of(state_->pending.begin(), state_->pending.end(),
                     [](const auto& pending) { return pending->done(); });
}

bool Work::done() const {
  if (!state_) return true;
  if (!ended()) return false;
  for (const auto& pending : state_->pending) pending->wait({});  // at once; throws if it failed
  return true;
}

void Work::finish() noexcept {
  if (!state_ || state_->waited || state_->error) return;
  try {
    if (std::uncaught_exceptions() > state_->exceptions) {
      const auto until = std::chrono::steady_clock::now() + kUnwinding;
      while (!ended() && std::chrono::steady_clock::now() < until) {
        state_->group->step();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!ended()) state_->group->abandon();
    }
    wait();
  } catch (...) {  // the world keeps the cause and throws it at the next operation
  }
}

}  // namespace trireme::comm
