#pragma once

#include <array>
#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

constexpr int kNowhere = -1;

/// At which step of its rank's program each action of a micro-batch stands: one dense table, so
/// that "has it been done?" is one comparison. The stages and micro-batches in it must exist.
class Places {
 public:
  explicit Places(const Schedule& schedule);

  int step(Act act, int stage, int micro) const { return table_[index(act, stage, micro)]; }
  int step(const Action& action) const { return step(action.act, action.stage, action.micro); }
  /// Notes where an action stands; returns where it stood before, or kNowhere.
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

/// What must have been done, on whatever rank, before an action can be: two actions at most.
///
///     F  the forward of the stage before      B, I  the stage's forward, the gradient of the next
///     W  the stage's I                        SEND  what is sent      RECV  the send
///
/// Between ranks F and B wait for their receive where the schedule has transfers.
struct Needs {
  std::array<Action, 2> actions{};
  int count = 0;
  void add(const Action& action) { actions[static_cast<std::size_t>(count++)] = action; }
  const Action* begin() const { return actions.data(); }
  const Action* end() const { return actions.data() + count; }
};
Needs needs(const Action& action, const Schedule& schedule, const Places& places);

}  // namespace trireme::pipeline
