#pragma once

#include <vector>

#include "sim/history.h"
#include "sim/scenario.h"

namespace trireme::sim {

using Breaches = std::vector<Breach>;

/// Each looks at what the workers wrote down and at nothing else.

/// No update twice; none lost that was acknowledged before a read began; reads monotonic, and a
/// worker sees its own writes.
void check_reads(const ps::JobConfig& job, const History& history, Breaches& found);
/// A read at clock c saw all updates of clocks <= c - tau - 1, of all workers.
void check_bound(const ps::JobConfig& job, const History& history, Breaches& found);
/// In lockstep a range shows a clock whole or not at all.
void check_whole_clocks(const ps::JobConfig& job, const History& history, Breaches& found);
void check_counters(const ps::JobConfig& job, const History& history, Breaches& found);

/// The weights after the whole job, by a plain loop in double.
std::vector<double> plain_loop(const ps::JobConfig& job);

}  // namespace trireme::sim
