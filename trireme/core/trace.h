#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::core {

/// What happened when, on one rank: for chrome://tracing and ui.perfetto.dev. Any thread may add.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  /// Actions come one after the other, or one in another; ops go on beside each other.
  enum class Row : uint8_t { Actions, Ops };

  /// `origin`: the time of day that counts as 0, the same for all ranks whose traces are merged.
  explicit Trace(int rank, std::chrono::nanoseconds origin = {});
  static std::chrono::nanoseconds time_of_day();

  void add(Row row, std::string name, Clock::time_point begin, Clock::time_point end);

  /// The events as text, one per line, each ending in ",\n"; they are forgotten.
  std::string take();

  /// The file, of what all ranks have taken. Times of ranks on one host are of one clock; of other
  /// hosts, as exact as their clocks agree.
  static std::string merged(const std::vector<std::string>& taken);

  /// The longest that is kept between two takes; what comes after is counted, not kept.
  static constexpr std::size_t kMostEvents = 1 << 20;

 private:
  struct Event {
    Row row;
    std::string name;
    Clock::time_point begin, end;
  };
  const int rank_;
  const std::chrono::nanoseconds offset_;  // from the steady clock to the time since the origin
  std::mutex mutex_;
  std::vector<Event> events_;
  std::size_t dropped_ = 0;
};

}  // namespace trireme::core
