#include "trireme/pipeline/step_table.h"

#include <utility>

namespace trireme::pipeline {

namespace {

constexpr int kActsWithMicro = 8;

/// The stage's backward that gives a gradient: the whole one, or its input half.
Action gradient_of(int stage, int micro, const StepTable& steps) {
  const bool split = steps.step(Act::BackwardInput, stage, micro) != kNoStep;
  return {stage, split ? Act::BackwardInput : Act::Backward, micro};
}

}  // namespace

StepTable::StepTable(const Schedule& schedule)
    : stages_(static_cast<std::size_t>(schedule.stages())),
      micros_(static_cast<std::size_t>(schedule.micros)),
      table_(kActsWithMicro * stages_ * micros_, kNoStep) {}

int StepTable::put(const Action& action, int step) {
  has_transfers_ |= is_transfer(action.act);
  return std::exchange(table_[index(action.act, action.stage, action.micro)], step);
}

Dependencies dependencies(const Action& action, const Schedule& schedule, const StepTable& steps) {
  const auto& [stage, act, micro, join] = action;
  const auto comes_by_transfer = [&, here = stage](int from) {
    return steps.has_transfers() && schedule.rank_of(from) != schedule.rank_of(here);
  };
  Dependencies found;
  switch (act) {
    case Act::Forward:
      if (stage == 0) break;
      if (comes_by_transfer(stage - 1))
        found.add({stage, Act::RecvAct, micro});
      else
        found.add({stage - 1, Act::Forward, micro});
      break;
    case Act::Backward:
    case Act::BackwardInput:
      found.add({stage, Act::Forward, micro});
      if (stage + 1 == schedule.stages()) break;
      if (comes_by_transfer(stage + 1))
        found.add({stage, Act::RecvGrad, micro});
      else
        found.add(gradient_of(stage + 1, micro, steps));
      break;
    case Act::BackwardWeight: found.add({stage, Act::BackwardInput, micro}); break;
    case Act::SendAct: found.add({stage, Act::Forward, micro}); break;
    case Act::RecvAct: found.add({stage - 1, Act::SendAct, micro}); break;
    case Act::SendGrad: found.add(gradient_of(stage, micro, steps)); break;
    case Act::RecvGrad: found.add({stage + 1, Act::SendGrad, micro}); break;
    default: break;  // acts of a whole stage wait only for what comes before them in the program
  }
  return found;
}

}  // namespace trireme::pipeline
