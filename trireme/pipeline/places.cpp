#include "trireme/pipeline/places.h"

#include <utility>

namespace trireme::pipeline {

namespace {

constexpr int kActsWithMicro = 8;

/// The stage's backward that gives a gradient: the whole one, or its input half.
Action gradient_of(int stage, int micro, const Places& places) {
  const bool split = places.step(Act::BackwardInput, stage, micro) != kNowhere;
  return {stage, split ? Act::BackwardInput : Act::Backward, micro};
}

}  // namespace

Places::Places(const Schedule& schedule)
    : stages_(static_cast<std::size_t>(schedule.stages())),
      micros_(static_cast<std::size_t>(schedule.micros)),
      table_(kActsWithMicro * stages_ * micros_, kNowhere) {}

int Places::put(const Action& action, int step) {
  has_transfers_ |= is_transfer(action.act);
  return std::exchange(table_[index(action.act, action.stage, action.micro)], step);
}

Needs needs(const Action& action, const Schedule& schedule, const Places& places) {
  const auto& [stage, act, micro, join] = action;
  const auto comes_by_transfer = [&, here = stage](int from) {
    return places.has_transfers() && schedule.rank_of(from) != schedule.rank_of(here);
  };
  Needs found;
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
        found.add(gradient_of(stage + 1, micro, places));
      break;
    case Act::BackwardWeight: found.add({stage, Act::BackwardInput, micro}); break;
    case Act::SendAct: found.add({stage, Act::Forward, micro}); break;
    case Act::RecvAct: found.add({stage - 1, Act::SendAct, micro}); break;
    case Act::SendGrad: found.add(gradient_of(stage, micro, places)); break;
    case Act::RecvGrad: found.add({stage + 1, Act::SendGrad, micro}); break;
    default: break;  // of a stage as a whole: its order in the program is all that counts
  }
  return found;
}

}  // namespace trireme::pipeline
