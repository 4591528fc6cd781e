#pragma once

#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/pipeline/action.h"

namespace trireme {

/// A schedule that cannot be made, read or run. The message names the action, if there is one.
class ScheduleError : public Error {
  using Error::Error;
};

namespace pipeline {

/// A pipeline schedule as a value: the rank of every stage, and one program per rank. Generators
/// make it, passes complete it, the runner executes it, `price` times it, `trireme schedule` draws
/// it.
struct Schedule {
  std::string name;
  int micros = 1;
  std::vector<int> placement;     ///< stage to rank
  std::vector<Program> programs;  ///< one per rank

  int ranks() const { return static_cast<int>(programs.size()); }
  int stages() const { return static_cast<int>(placement.size()); }
  int rank_of(int stage) const { return placement[static_cast<std::size_t>(stage)]; }
  std::vector<int> stages_of(int rank) const;
  /// Whether any program has the act. has(Act::Update): weights change within a step.
  bool has(Act act) const;
  bool operator==(const Schedule&) const = default;
};

}  // namespace pipeline
}  // namespace trireme
