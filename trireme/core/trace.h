#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::core {

/// A timeline of one rank, for chrome://tracing and ui.perfetto.dev. Any thread may add events.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  /// Actions follow or contain each other, and so does what a GPU computes; ops may overlap. (Ops
  /// are seen from the host. A backend whose ops run on a GPU's stream would mark them there, as
  /// train/layer_times.h does, and needs a row of its own: they overlap with the layers.)
  enum class Row : uint8_t { Actions, Ops, Gpu };

  /// `origin`: the time of day that counts as 0, the same for all ranks whose traces are merged.
  explicit Trace(int rank, std::chrono::nanoseconds origin = {});
  static std::chrono::nanoseconds time_of_day();

  void add(Row row, std::string name, Clock::time_point begin, Clock::time_point end);

  /// Has `add_more` called whenever events are taken: by whoever learns of events late.
  void before_take(std::function<void()> add_more);

  /// Removes the events and returns them as text, one per line, each ending in ",\n".
  std::string take();

  /// Makes the file from the texts of all ranks. Ranks of one host use the same clock; between
  /// hosts, times are as exact as their clocks agree.
  static std::string merged(const std::vector<std::string>& taken);

  /// The most events kept between two takes; further ones are only counted.
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
  std::vector<std::function<void()>> before_take_;
  std::vector<Event> events_;
  std::size_t dropped_ = 0;
};

}  // namespace trireme::core
