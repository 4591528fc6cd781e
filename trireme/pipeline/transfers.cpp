#include <algorithm>

#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/play.h"

namespace trireme::pipeline {

namespace {

bool is_on_another_rank(const Schedule& schedule, int stage, int other) {
  return other >= 0 && other < schedule.stages() &&
         schedule.rank_of(other) != schedule.rank_of(stage);
}

void add_receive(const Schedule& schedule, const Action& action, Program& program) {
  const int stage = action.stage;
  if (action.act == Act::Forward && is_on_another_rank(schedule, stage, stage - 1))
    program.push_back({stage, Act::RecvAct, action.micro});
  if (gives_gradient(action.act) && is_on_another_rank(schedule, stage, stage + 1))
    program.push_back({stage, Act::RecvGrad, action.micro});
}

void add_send(const Schedule& schedule, const Action& action, Program& program) {
  const int stage = action.stage;
  if (action.act == Act::Forward && is_on_another_rank(schedule, stage, stage + 1))
    program.push_back({stage, Act::SendAct, action.micro});
  if (gives_gradient(action.act) && is_on_another_rank(schedule, stage, stage - 1))
    program.push_back({stage, Act::SendGrad, action.micro});
}

bool has_transfers(const Schedule& schedule) {
  return schedule.has(Act::SendAct) || schedule.has(Act::RecvAct) || schedule.has(Act::SendGrad) ||
         schedule.has(Act::RecvGrad);
}

}  // namespace

// A receive comes right before the action that uses it, a send right after the action that it sends
// from. Around a pair come both receives before and both sends after, so that it stays together:
//
//     1F0                   1RECV_F0 1F0 1SEND_F0
//     (1F3;2B0)OVERLAP_F_B  1RECV_F3 2RECV_B0 (1F3;2B0)OVERLAP_F_B 1SEND_F3 2SEND_B0
Schedule with_transfers(Schedule schedule) {
  if (has_transfers(schedule)) return schedule;
  for (Program& program : schedule.programs) {
    Program complete;
    complete.reserve(3 * program.size());
    for (std::size_t at = 0; at < program.size();) {
      const std::size_t end =
          std::min(program.size(), at + static_cast<std::size_t>(num_joined(program[at])));
      for (std::size_t i = at; i < end; ++i) add_receive(schedule, program[i], complete);
      for (std::size_t i = at; i < end; ++i) complete.push_back(program[i]);
      for (std::size_t i = at; i < end; ++i) add_send(schedule, program[i], complete);
      at = end;
    }
    program = std::move(complete);
  }
  return schedule;
}

}  // namespace trireme::pipeline
