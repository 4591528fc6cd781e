#include "trireme/comm/shared/futex_sleeper.h"

namespace trireme::comm {

void FutexSleeper::prepare(const WakeCondition& condition) {
  // All threads of the rank share one bell, so a condition counts only while one of them sleeps.
  const bool alone = sleepers_.fetch_add(1) == 0;
  seat_.wants_channel.store(condition.channel, std::memory_order_relaxed);
  seat_.wants_value.store(condition.value, std::memory_order_relaxed);
  seat_.wants_group.store(alone ? condition.group : 0, std::memory_order_relaxed);
  seat_.bell.store(1, std::memory_order_release);
  // Pairs with the fence of SharedGroup::post and ring(): the engine's next look happens after the
  // others can see the bell.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void FutexSleeper::sleep(std::chrono::nanoseconds most) {
  futex_wait(seat_.bell, 1, most);
  cancel();
}

void FutexSleeper::cancel() {
  if (sleepers_.fetch_sub(1) == 1) seat_.bell.store(0, std::memory_order_relaxed);
}

}  // namespace trireme::comm
