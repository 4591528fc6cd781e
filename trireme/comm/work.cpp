#include "trireme/comm/work.h"

#include <algorithm>
#include <thread>

namespace trireme::comm {

namespace {

/// How long an operation may take to end while an exception unwinds the stack: long enough for one
/// that all ranks have started.
constexpr auto kUnwinding = std::chrono::milliseconds(200);

}  // namespace

Work::Work(std::unique_ptr<StartedOps> started) : started_(std::move(started)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  finish();
  started_ = std::move(other.started_);
  return *this;
}

Work::~Work() {
  finish();
}

void Work::wait() {
  if (!started_) return;
  if (started_->error) std::rethrow_exception(started_->error);
  if (started_->waited) return;
  try {
    for (const auto& pending : started_->pending) pending->wait(started_->timeout);
    for (auto& [to, from] : started_->copy_back) to.copy_(from, /*non_blocking=*/true);
    started_->waited = true;
  } catch (...) {
    started_->error = std::current_exception();
    throw;
  }
}

void Work::synchronize() {
  wait();
  if (!started_) return;
  try {
    for (const auto& pending : started_->pending) pending->synchronize(started_->timeout);
  } catch (...) {
    started_->error = std::current_exception();
    throw;
  }
  // Reading one element back waits for the stream that the copy was put on.
  if (!started_->copy_back.empty())
    (void)started_->copy_back.back().first.flatten().slice(0, 0, 1).cpu();
}

bool Work::ended() const {
  return std::all_of(started_->pending.begin(), started_->pending.end(),
                     [](const auto& pending) { return pending->done(); });
}

bool Work::done() const {
  if (!started_) return true;
  if (!ended()) return false;
  for (const auto& pending : started_->pending) pending->wait({});  // at once; throws if it failed
  return true;
}

void Work::finish() noexcept {
  if (!started_ || started_->waited || started_->error) return;
  try {
    if (std::uncaught_exceptions() > started_->exceptions) {
      const auto until = std::chrono::steady_clock::now() + kUnwinding;
      while (!ended() && std::chrono::steady_clock::now() < until) {
        started_->group->step();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!ended()) started_->group->abandon();
    }
    wait();
  } catch (...) {  // the world keeps the cause and throws it at the next operation
  }
}

}  // namespace trireme::comm
