#pragma once

#include <string_view>
#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

struct Shape {
  int ranks = 1, micros = 1;
  int stages_per_rank = 1;  ///< zb-v and dualpipe-v have 2; they take 1 (the default) or 2
};

/// Makes a schedule by its name: compute order only, no transfers. Throws ScheduleError, with the
/// numbers, for an unknown name, or a shape that the schedule cannot have.
Schedule make(std::string_view name, Shape shape);

/// The names of all schedules, in the order in which help lists them.
std::vector<std::string_view> names();

/// False for the schedules that update weights within a step (pipedream, pipedream-2bw).
bool is_synchronous(std::string_view name);

/// How many stages each rank has if `wanted` are asked for. Throws ScheduleError where the schedule
/// cannot have that many.
int stages_per_rank(std::string_view name, int wanted);

}  // namespace trireme::pipeline
