#pragma once

#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// Adds the sends and receives that the compute order implies; neighbouring stages on one rank need
/// none. A schedule that has transfers already is returned unchanged.
Schedule with_transfers(Schedule schedule);

/// Adds, for every stage, Unshard before its first use and Reshard after its last.
Schedule with_unshards(Schedule schedule);

/// Adds ReduceGrad for every stage, right after its last backward.
Schedule with_reduces(Schedule schedule);

/// Simulates all ranks. Throws ScheduleError, naming the action, for a deadlock or a missing
/// dependency, for work done twice or never, and for a stage or micro-batch that does not exist or
/// is on another rank.
void verify(const Schedule& schedule);

/// How many micro-batches of an evaluation may be in flight: enough that no stage waits, few enough
/// that their activations take little memory.
int most_in_flight(const Schedule& schedule);

/// The forwards of `micros` micro-batches on the same stages, which is what an evaluation runs. The
/// first stage begins micro-batch m after the last stage has ended m - most_in_flight.
Schedule forwards_only(const Schedule& schedule, int micros);

/// The most micro-batches that each rank has in flight, counted per stage and added up: from the
/// forward to the backward (its weight half, where it is split) that releases the activations.
std::vector<int> peak_in_flight(const Schedule& schedule);

/// Is the next that the rank computes after this forward its own backward?
bool backward_follows(const Program& program, std::size_t forward);

}  // namespace trireme::pipeline
