#include "trireme/parallel/sum_thread.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <set>

namespace trireme::parallel {

namespace {

/// Between two looks at rounds that are under way: a part of the time since something moved, so
/// that a fast link is not slowed down and a slow one costs no core.
constexpr std::chrono::microseconds kShortestPause{20}, kLongestPause{500};
constexpr int kPartOfWait = 16;

}  // namespace

/// While the thread works on a sum, it stands in for the thread that has started it.
class SumThread::AsCaller {
 public:
  explicit AsCaller(const Sum& sum);

 private:
  at::ThreadLocalStateGuard state_;
  at::NoGradGuard no_grad_;
  c10::OptionalStreamGuard stream_;
};

class SumThread::Sum {
 public:
  Sum(const comm::Communicator& on, at::Device device, Begin how)
      : lane(on.carrier()), begin(std::move(how)) {
    if (device.is_cuda()) stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }

  enum class Round : uint8_t { None, First, Second };

  std::shared_ptr<comm::Backend> lane;
  Begin begin;
  std::optional<c10::Stream> stream;
  at::ThreadLocalState caller;  // whoever counts the caller's memory counts this, too
  std::unique_ptr<CompressedSum> sum;
  Round round = Round::None;
  bool done = false;  // guarded by the thread's mutex, as are the error and the waiters
  int waiters = 0;
  std::exception_ptr error;
};

SumThread::AsCaller::AsCaller(const Sum& sum) : state_(sum.caller), stream_(sum.stream) {}

SumThread::~SumThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  queued_.notify_all();
}

std::shared_ptr<SumThread::Sum> SumThread::start(const comm::Communicator& lane, at::Device device,
                                                 Begin begin) {
  const auto sum = std::make_shared<Sum>(lane, device, std::move(begin));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(sum);
  }
  if (!thread_.joinable()) thread_ = std::jthread([this] { run(); });
  queued_.notify_all();
  return sum;
}

void SumThread::wait(Sum& sum) {
  std::unique_lock lock(mutex_);
  if (!sum.done) {
    if (++waiting_ == 1) waiting_since_ = Clock::now();
    ++sum.waiters;
    queued_.notify_all();
    done_.wait(lock, [&] { return sum.done; });
  }
  if (sum.error) std::rethrow_exception(sum.error);
}

void SumThread::run() {
  auto moved_at = Clock::now();
  bool moved = false;
  for (;;) {
    bool may_sleep = false, overdue = false;
    {
      std::unique_lock lock(mutex_);
      const auto is_time = [&] {
        return stops_ || !queue_.empty() || (waiting_ > 0 && has_one_lane());
      };
      const auto pause = std::clamp<Clock::duration>((Clock::now() - moved_at) / kPartOfWait,
                                                     kShortestPause, kLongestPause);
      if (sums_.empty())
        queued_.wait(lock, is_time);
      else if (!moved)
        queued_.wait_for(lock, pause, is_time);
      if (stops_) return;
      for (auto& one : queue_) sums_.push_back(std::move(one));
      queue_.clear();
      may_sleep = waiting_ > 0 && has_one_lane();
      overdue = waiting_ > 0 &&
                Clock::now() - std::max(moved_at, waiting_since_) > sums_.front()->lane->timeout();
    }
    try {
      if (failure_) std::rethrow_exception(failure_);
      moved = advance_one();
      if (!moved && (may_sleep || overdue)) moved = finish_round(*sums_.front());
      if (moved) moved_at = Clock::now();
    } catch (...) {
      fail(std::current_exception());
    }
  }
}

bool SumThread::has_one_lane() const {
  return !sums_.empty() && std::ranges::all_of(sums_, [&](const auto& one) {
    return one->lane == sums_.front()->lane;
  });
}

/// Encodes one block, or goes on with one sum whose round has arrived; false: there is none. Blocks
/// that wait to be encoded come first, because the link may be idle.
bool SumThread::advance_one() {
  for (const auto& one : sums_)
    if (one->round == Sum::Round::None) {
      const AsCaller guard(*one);
      one->sum = std::exchange(one->begin, {})();
      one->round = Sum::Round::First;
      return true;
    }
  sums_.front()->lane->step();
  std::set<const comm::Backend*> busy;  // lanes with an earlier sum in its first round
  for (const auto& one : sums_) {
    const bool first = one->round == Sum::Round::First;
    if (first && !busy.insert(one->lane.get()).second) continue;
    if (one->sum->arrived()) return finish_round(*one);
  }
  return false;
}

/// Waits for the round that is under way, and starts the next or writes the sum.
bool SumThread::finish_round(Sum& one) {
  const AsCaller guard(one);
  if (one.round == Sum::Round::First) {
    one.sum->start_second();
    one.round = Sum::Round::Second;
    return true;
  }
  one.sum->finish();
  one.sum.reset();
  end(one, nullptr);
  std::erase_if(sums_, [&](const auto& each) { return each.get() == &one; });
  return true;
}

/// Nobody waits for the sum from now on, whether or not its waiters have woken up: they may start
/// more sums, which must not find this thread asleep.
void SumThread::end(Sum& one, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    one.error = error;
    one.done = true;
    waiting_ -= std::exchange(one.waiters, 0);
  }
  done_.notify_all();
}

void SumThread::fail(const std::exception_ptr& error) {
  failure_ = error;
  for (const auto& one : sums_) end(*one, error);
  // What they have started ends when the reducer goes, on a thread that may be unwinding.
  for (auto& one : sums_) failed_.push_back(std::move(one));
  sums_.clear();
}

}  // namespace trireme::parallel
