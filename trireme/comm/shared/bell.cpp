#include "trireme/comm/shared/bell.h"

namespace trireme::comm {

void Bell::prepare(const Hint& hint) {
  // One bell for all threads of the rank: a hint holds only while there is one sleeper.
  const bool alone = sleepers_.fetch_add(1) == 0;
  seat_.wants_channel.store(hint.channel, std::memory_order_relaxed);
  seat_.wants_value.store(hint.value, std::memory_order_relaxed);
  seat_.wants_group.store(alone ? hint.group : 0, std::memory_order_relaxed);
  seat_.bell.store(1, std::memory_order_release);
  // Pairs with the fence of SharedGroup::post and ring(): the look that follows is not made before
  // the bell is seen to be set.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Bell::sleep(std::chrono::nanoseconds most) {
  futex_wait(seat_.bell, 1, most);
  cancel();
}

void Bell::cancel() {
  if (sleepers_.fetch_sub(1) == 1) seat_.bell.store(0, std::memory_order_relaxed);
}

}  // namespace trireme::comm
