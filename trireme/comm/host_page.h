#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::comm {

/// Why a world failed. All ranks report the first cause that a rank wrote down.
enum class CauseKind : uint32_t { None, Died, Hung, Left, Timeout, Mismatch, Aborted, Error };

struct Cause {
  CauseKind kind = CauseKind::None;
  int rank = -1;  ///< the rank at fault, in the world; -1: not a single one
  std::string text;
};

enum class SeatState : uint32_t { Empty, Present, Left };

/// What one rank shows the others of its host. Each cache line has one writer, so no read is torn.
struct alignas(128) Seat {
  // The bell: a rank that is about to sleep sets it to 1, stores what it waits for, looks once
  // more, and sleeps on it. The rank that makes the condition true sets it to 0 and wakes the
  // sleeper.
  std::atomic<uint32_t> bell{0};
  std::atomic<uint32_t> wants_channel{0};
  std::atomic<uint64_t> wants_group{0};  ///< 0: anything
  std::atomic<uint64_t> wants_value{0};
  alignas(128) std::atomic<uint32_t> state{0};  ///< SeatState
  std::atomic<uint64_t> heartbeat{0};
  std::atomic<int64_t> pid{0};
  std::atomic<uint64_t> born{0};  ///< start time of the process, to notice a reused pid

  /// 1 while this rank works in memory of other ranks (see PeerMemoryAccess).
  std::atomic<uint32_t> touches{0};

  /// The cause that this rank found for the failure of the world. Written once, before the page
  /// points to it: a reader never sees half a sentence, even if the writer dies.
  static constexpr int kCauseBytes = 1000;
  alignas(128) std::atomic<uint32_t> cause_taken{0};
  uint32_t cause_kind = 0;
  int32_t cause_rank = 0;
  char cause_text[kCauseBytes];

  /// What this rank does, for the errors of the ranks that survive it. A dead or stopped rank
  /// writes no more, so what the others then read is complete.
  static constexpr std::size_t kNoteWords = 16;
  alignas(128) std::atomic<uint64_t> note[kNoteWords];
  void set_note(std::string_view text);
  std::string get_note() const;
};

/// The control page of the ranks of one host: who is present, who sleeps, and the first cause of
/// failure. It lies in memory that all of them have mapped (on the heap if ranks are threads). The
/// kernel zeroes it, so zero must be a valid initial state.
struct HostPage {
  std::atomic<uint32_t> first_cause{0};  ///< the seat that holds it, counted from 1; 0: none
  alignas(
      128) Seat seats[1];  ///< one per rank of the world; those of other hosts have only `state`

  /// Bytes that `taker` has read from the memory of `owner`. Each taker writes its own row.
  std::atomic<uint64_t>& taken(int taker, int owner, int ranks) {
    auto* rows = reinterpret_cast<std::byte*>(seats + ranks);
    return reinterpret_cast<std::atomic<uint64_t>*>(
        rows + row_bytes(ranks) * static_cast<std::size_t>(taker))[owner];
  }
  static std::size_t row_bytes(int ranks) {
    return (static_cast<std::size_t>(ranks) * sizeof(uint64_t) + 127) / 128 * 128;
  }

  static std::size_t bytes(int ranks) {
    return sizeof(HostPage) + (sizeof(Seat) + row_bytes(ranks)) * static_cast<std::size_t>(ranks);
  }

  /// Makes this the cause that all ranks report, unless there is one already. Returns true if this
  /// call was the first; when it returns, the world has failed in any case. `writer`: the calling
  /// rank.
  bool claim(int writer, const Cause& cause);

  /// The agreed cause; kind None while there is none.
  Cause cause() const;

  bool failed() const { return first_cause.load(std::memory_order_acquire) != 0; }
};

/// Sleeps while `word` is `expected`, but at most for `most`. Works between processes and threads.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds most);
void futex_wake_all(std::atomic<uint32_t>& word);

/// Wakes the owner of the seat if it sleeps, whatever it waits for.
void ring(Seat& seat);

}  // namespace trireme::comm
