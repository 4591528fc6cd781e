// What workers of a stale table wrote and saw, and a checker that looks at nothing else.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "trireme/ps/ids.h"

namespace trireme::test {

/// Each worker adds 1 to its own element of every range in each of its clocks. So a read shows, for
/// each range, how many clocks of each worker it saw: a range takes those of one worker in their
/// order.
///
///   range 0          range 1
///   | w0  w1  w2  |  | w0  w1  w2  |
///     7   5   7        7   6   7        worker 1 is slow
struct StaleRead {
  uint32_t worker = 0;
  ps::Clock clock = 0;
  std::vector<std::vector<double>> seen = {};  ///< by range, by worker
};

/// One worker's own log, in its order.
struct StaleLog {
  std::vector<ps::Clock> writes;  ///< acknowledged
  std::vector<StaleRead> reads;
};

struct StaleFindings {
  size_t reads = 0;
  size_t behind = 0;  ///< most clocks that a read missed of what other workers wrote in the end
  std::vector<std::string> breaches = {};
};

/// Proves for every read, at clock c of worker w, in every range and for every worker v:
///   saw >= v's writes of clocks <= c - tau - 1        the bound
///   saw  = v's writes of clocks < c, if tau is 0      lockstep shows no more, too
///   saw >= what w's read before it saw                monotonic
///   saw  = w's writes of clocks < c, if v is w        its own
///   saw <= all of v's writes                          nothing is invented or applied twice
inline StaleFindings check_staleness(const std::vector<StaleLog>& logs, int64_t tau) {
  StaleFindings findings;
  const auto before = [&](size_t worker, int64_t clock) {  // writes of clocks < clock
    return static_cast<double>(std::ranges::count_if(
        logs[worker].writes, [&](ps::Clock one) { return static_cast<int64_t>(one) < clock; }));
  };
  for (const StaleLog& log : logs) {
    const StaleRead* last = nullptr;
    for (const StaleRead& read : log.reads) {
      ++findings.reads;
      const auto clock = static_cast<int64_t>(read.clock);
      for (size_t range = 0; range < read.seen.size(); ++range)
        for (size_t other = 0; other < logs.size(); ++other) {
          const double saw = read.seen[range][other];
          const double most = static_cast<double>(logs[other].writes.size());
          const double least = before(other, clock - tau);
          const bool is_exact = tau == 0 || other == read.worker;
          const bool is_older = last && saw < last->seen[range][other];
          if (saw < least || saw > most || is_older || (is_exact && saw != before(other, clock)))
            findings.breaches.push_back(fmt::format(
                "worker {} at clock {}, range {}: saw {} of {} clocks of worker {}, and must see "
                "{} "
                "at least{}",
                read.worker, clock, range, saw, most, other, least,
                is_older ? fmt::format("; it had seen {}", last->seen[range][other]) : ""));
          findings.behind = std::max(
              findings.behind, static_cast<size_t>(std::max(0.0, before(other, clock) - saw)));
        }
      last = &read;
    }
  }
  return findings;
}

}  // namespace trireme::test
