#pragma once

#include <string_view>
#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

struct Shape {
  int ranks = 1, micros = 1;
  int stages_per_rank = 1;  ///< zb-v and dualpipe-v take 1, unsaid, or 2, and have 2
};

/// Makes a schedule by its name: compute order only, no transfers. Throws ScheduleError, with the
/// numbers, for a name that is none, or a shape that the schedule cannot have.
Schedule make(std::string_view name, Shape shape);

/// The names, in the order in which they are listed for people.
std::vector<std::string_view> names();

/// False for the schedules that update weights in the middle (pipedream, pipedream-2bw).
bool is_synchronous(std::string_view name);

/// How many stages each rank holds, where the schedule is made for such a shape.
int stages_per_rank(std::string_view name, int wanted);

}  // namespace trireme::pipeline
