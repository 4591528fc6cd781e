#include "trireme/comm/host_page.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace trireme::comm {

void Seat::set_note(std::string_view text) {
  char bytes[sizeof(note)] = {};
  std::memcpy(bytes, text.data(), std::min(text.size(), sizeof(bytes) - 1));
  for (std::size_t i = 0; i < kNoteWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    note[i].store(word, std::memory_order_relaxed);
  }
}

std::string Seat::get_note() const {
  char bytes[sizeof(note)] = {};
  for (std::size_t i = 0; i < kNoteWords; ++i) {
    const uint64_t word = note[i].load(std::memory_order_relaxed);
    std::memcpy(bytes + i * sizeof(word), &word, sizeof(word));
  }
  bytes[sizeof(bytes) - 1] = 0;
  return bytes;
}

bool HostPage::claim(const Cause& cause) {
  uint32_t none = 0;
  if (!cause_state.compare_exchange_strong(none, 1)) return false;
  cause_kind.store(static_cast<uint32_t>(cause.kind), std::memory_order_relaxed);
  cause_rank.store(cause.rank, std::memory_order_relaxed);
  const auto length = std::min<std::size_t>(cause.text.size(), kTextBytes - 1);
  std::memcpy(cause_text, cause.text.data(), length);
  cause_text[length] = '\0';
  cause_state.store(2, std::memory_order_release);
  return true;
}

Cause HostPage::cause() const {
  uint32_t state = cause_state.load(std::memory_order_acquire);
  if (state == 0) return {};
  // The writer may have been killed between the two stores: then say so rather than wait for ever.
  for (int spins = 0; state == 1 && spins < 1000; ++spins) {
    ::sched_yield();
    state = cause_state.load(std::memory_order_acquire);
  }
  if (state == 1) return {CauseKind::Died, -1, "a rank died while it reported a failure"};
  return {static_cast<CauseKind>(cause_kind.load(std::memory_order_relaxed)),
          cause_rank.load(std::memory_order_relaxed), std::string(cause_text)};
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds most) {
  const timespec limit{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr,
            0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
            0);
}

void ring(Seat& seat) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (seat.bell.load(std::memory_order_acquire) == 0) return;
  if (seat.bell.exchange(0) != 0) futex_wake_all(seat.bell);
}

}  // namespace trireme::comm
