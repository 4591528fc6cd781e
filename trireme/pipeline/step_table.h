#pragma once

#include <array>
#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

constexpr int kNoStep = -1;

/// The step of each action in the program of its rank, as a dense table: "has it been done?" is one
/// comparison. Stages and micro-batches must be in range.
class StepTable {
 public:
  explicit StepTable(const Schedule& schedule);

  int step(Act act, int stage, int micro) const { return table_[index(act, stage, micro)]; }
  int step(const Action& action) const { return step(action.act, action.stage, action.micro); }
  /// Sets the step of an action; returns the step that was set before, or kNoStep.
  int put(const Action& action, int step);
  bool has_transfers() const { return has_transfers_; }

 private:
  std::size_t index(Act act, int stage, int micro) const {
    return (static_cast<std::size_t>(act) * stages_ + static_cast<std::size_t>(stage)) * micros_ +
           static_cast<std::size_t>(micro);
  }

  std::size_t stages_, micros_;
  bool has_transfers_ = false;
  std::vector<int> table_;
};

/// The actions, on any rank, that must be done before an action can run: at most two.
///
///     F  the forward of the stage before      B, I  the stage's forward, the gradient of the next
///     W  the stage's I                        SEND  what is sent      RECV  the send
///
/// Between ranks, F and B wait for their receive instead where the schedule has transfers.
struct Dependencies {
  std::array<Action, 2> actions{};
  int count = 0;
  void add(const Action& action) { actions[static_cast<std::size_t>(count++)] = action; }
  const Action* begin() const { return actions.data(); }
  const Action* end() const { return actions.data() + count; }
};
Dependencies dependencies(const Action& action, const Schedule& schedule, const StepTable& steps);

}  // namespace trireme::pipeline
