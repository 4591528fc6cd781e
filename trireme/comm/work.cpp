#include "trireme/comm/work.h"

#include <algorithm>
#include <exception>

namespace trireme::comm {

Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}

Work& Work::operator=(Work&& other) noexcept {
  finish();
  state_ = std::move(other.state_);
  return *this;
}

Work::~Work() {
  finish();
}

void Work::wait() {
  if (!state_ || state_->waited) return;
  state_->waited = true;
  for (const auto& pending : state_->pending) pending->wait(state_->timeout);
  for (auto& [to, from] : state_->copy_back) to.copy_(from, /*non_blocking=*/true);
}

void Work::synchronize() {
  wait();
  // Reading one element back waits for the stream that the copy was put on.
  if (state_ && !state_->copy_back.empty())
    (void)state_->copy_back.back().first.flatten().slice(0, 0, 1).cpu();
}

bool Work::done() const {
  return !state_ || std::all_of(state_->pending.begin(), state_->pending.end(),
                                [](const auto& pending) { return pending->done(); });
}

void Work::finish() noexcept {
  try {
    wait();
  } catch (
      const std::exception&) {  // the world keeps the cause and throws it at the next operation
  }
}

}  // namespace trireme::comm
