#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/core/op_info.h"

namespace trireme::comm {

/// The ring of recent operations of a rank: what it did last, kept for the day it fails. On a
/// failure it is written to rank-N.json of the folder for records, one file per rank. Used under
/// the engine's turn; times are to a few milliseconds, which costs 5 ns instead of 25.
class Recorder {
 public:
  Recorder(int rank, std::optional<std::string> folder);

  /// Returns the entry's place, to be finished later.
  uint64_t started(const std::string& group, uint64_t number, const core::OpInfo& info);
  void finished(uint64_t place);

  /// Writes the ring where it was asked for, once. Never throws: this runs while failing.
  void write(const std::string& cause) noexcept;

 private:
  struct Entry {
    std::array<char, 32> group{};
    uint64_t number = 0;
    core::OpInfo info;
    std::chrono::nanoseconds started{0}, finished{0};  ///< of the coarse clock; 0: not yet
  };
  static constexpr std::size_t kEntries = 256;

  const int rank_;
  const std::optional<std::string> folder_;
  std::array<Entry, kEntries> entries_{};
  uint64_t count_ = 0;
  bool written_ = false;
};

}  // namespace trireme::comm
