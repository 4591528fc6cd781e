#pragma once

#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// Puts in the sends and receives that the compute order implies; neighbours on one rank need none.
/// A schedule that has some keeps them as they are.
Schedule with_transfers(Schedule schedule);

/// Puts in, for every stage: Unshard before its first use, Reshard after its last.
Schedule with_unshards(Schedule schedule);

/// Puts in ReduceGrad for every stage, right after its last backward of all.
Schedule with_reduces(Schedule schedule);

/// Plays all ranks together. Throws ScheduleError, naming the action, for what can never run (a
/// deadlock, a dependency that is missing), for work done twice or never, for a stage or
/// micro-batch that does not exist, or one that is on another rank.
void verify(const Schedule& schedule);

/// How many micro-batches of an evaluation are in the pipe at most: enough that no stage waits, few
/// enough that what is on its way stays small.
int most_in_flight(const Schedule& schedule);

/// The forwards of `micros` micro-batches on the same stages, and nothing else: what an evaluation
/// runs. The first stage begins micro-batch m after the last one has ended m - most_in_flight.
Schedule forwards_only(const Schedule& schedule, int micros);

/// How many micro-batches each rank keeps alive at most, per stage and added up: from a forward to
/// the backward (of weights, where it is split) that lets go of it.
std::vector<int> peak_live(const Schedule& schedule);

}  // namespace trireme::pipeline
