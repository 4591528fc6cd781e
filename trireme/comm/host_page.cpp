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

bool HostPage::claim(int writer, const Cause& cause) {
  if (failed()) return false;
  Seat& seat = seats[writer];
  uint32_t free = 0;
  if (!seat.cause_taken.compare_exchange_strong(free, 1)) {
    // Another thread of this rank is about to do it, and lives as long as this one.
    while (!failed()) ::sched_yield();
    return false;
  }
  seat.cause_kind = static_cast<uint32_t>(cause.kind);
  seat.cause_rank = cause.rank;
  const auto length = std::min<std::size_t>(cause.text.size(), Seat::kCauseBytes - 1);
  std::memcpy(seat.cause_text, cause.text.data(), length);
  seat.cause_text[length] = '\0';
  uint32_t none = 0;
  return first_cause.compare_exchange_strong(none, static_cast<uint32_t>(writer) + 1);
}

Cause HostPage::cause() const {
  const uint32_t first = first_cause.load(std::memory_order_acquire);
  if (first == 0) return {};
  const Seat& seat = seats[first - 1];
  return {static_cast<CauseKind>(seat.cause_kind), seat.cause_rank, std::string(seat.cause_text)};
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
