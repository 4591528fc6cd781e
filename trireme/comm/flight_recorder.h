#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/core/op_info.h"

namespace trireme::comm {

/// Remembers the last operations of a rank and writes them to rank-N.json in the record folder when
/// the world fails. Used under the engine's lock. Times are exact to a few milliseconds: the coarse
/// clock costs 5 ns instead of 25.
class FlightRecorder {
 public:
  FlightRecorder(int rank, std::optional<std::string> folder);

  /// Returns the record's index, for finished().
  uint64_t started(const std::string& group, uint64_t number, const core::OpInfo& info);
  void finished(uint64_t index);

  /// Writes the records, once, if there is a folder. Never throws: this runs during a failure.
  void write(const std::string& cause) noexcept;

 private:
  struct Record {
    std::array<char, 32> group{};
    uint64_t number = 0;
    core::OpInfo info;
    std::chrono::nanoseconds started{0}, finished{0};  ///< of the coarse clock; 0: not yet
  };
  static constexpr std::size_t kRecords = 256;

  const int rank_;
  const std::optional<std::string> folder_;
  std::array<Record, kRecords> records_{};
  uint64_t count_ = 0;
  bool written_ = false;
};

}  // namespace trireme::comm
