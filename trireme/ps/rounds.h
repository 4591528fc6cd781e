#pragma once

#include <map>
#include <utility>
#include <vector>

#include "trireme/ps/job.h"
#include "trireme/ps/protocol.h"

namespace trireme::ps {

/// The coordinator of lockstep, at the head of range 0. It collects which ranges have all pushes of
/// a clock, and tells all of them when everyone has.
///
///   heads -- RoundWhole(clock, squares) --> coordinator -- RoundReady(clock, squares) --> heads
///         <---------- RoundAsk ------------               (of all ranges that clip)
///
/// It keeps nothing that matters: another coordinator asks again, and a range that has applied the
/// clock already repeats what it said. No range is more than one clock ahead of another.
class Rounds {
 public:
  explicit Rounds(const JobConfig& job) : job_(job) {}

  using Part = std::pair<TableId, RangeId>;

  void add(const RoundWhole& whole) {
    while (!clocks_.empty() && clocks_.begin()->first + 2 < whole.clock)
      clocks_.erase(clocks_.begin());
    clocks_[whole.clock][{whole.table, whole.range}] = whole.squares;
  }

  /// Whether the clock is whole at all ranges of all tables in lockstep.
  bool is_whole(Clock clock) const {
    const auto found = clocks_.find(clock);
    return found != clocks_.end() && found->second.size() == all_parts().size();
  }

  /// Of the sums of all tables that clip (of others it is 0).
  double squares(Clock clock) const {
    double squares = 0;
    for (const auto& [part, value] : clocks_.at(clock)) squares += value;
    return squares;
  }

  std::vector<Part> all_parts() const {
    std::vector<Part> parts;
    for (TableId table = 0; table < job_.tables.size(); ++table)
      for (RangeId range = 0; job_.in_lockstep(table) && range < job_.ranges; ++range)
        parts.emplace_back(table, range);
    return parts;
  }

  /// What is not known yet of clocks that some part has whole. There may be two: a range that
  /// nobody reads from can be one clock behind the others.
  std::vector<RoundAsk> missing() const {
    std::vector<RoundAsk> asks;
    for (const auto& [clock, known] : clocks_)
      for (const auto& [table, range] : all_parts())
        if (!known.contains({table, range})) asks.push_back({table, range, clock});
    return asks;
  }

  void clear() { clocks_.clear(); }

 private:
  const JobConfig& job_;
  std::map<Clock, std::map<Part, double>> clocks_;
};

}  // namespace trireme::ps
