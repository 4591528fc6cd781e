#include <algorithm>
#include <cstdint>

#include "trireme/pipeline/checks.h"

namespace trireme::pipeline {

namespace {

void check_schedule_shape(const Schedule& schedule) {
  if (schedule.ranks() == 0 || schedule.stages() == 0 || schedule.micros < 1)
    refuse(schedule, "{} ranks, {} stages and {} micro-batches: there must be at least one of each",
           schedule.ranks(), schedule.stages(), schedule.micros);
  std::vector<int> held(schedule.programs.size(), 0);
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const int rank = schedule.rank_of(stage);
    if (rank < 0 || rank >= schedule.ranks())
      refuse(schedule, "stage {} is on rank {}, but there are {} ranks", stage, rank,
             schedule.ranks());
    ++held[static_cast<std::size_t>(rank)];
  }
  if (const auto idle = std::ranges::find(held, 0); idle != held.end())
    refuse(schedule, "rank {} holds no stage", idle - held.begin());
  std::size_t actions = 0;
  for (const Program& program : schedule.programs) actions += program.size();
  // Checked before the table of steps is made, so that a wrong number does not take all memory.
  if (static_cast<uint64_t>(schedule.stages()) * static_cast<uint64_t>(schedule.micros) > actions)
    refuse(schedule,
           "{} stages x {} micro-batches, but only {} actions: most of the work is missing",
           schedule.stages(), schedule.micros, actions);
}

/// The stage at the other end of a transfer.
int peer_stage(const Action& action) {
  const bool next = action.act == Act::SendAct || action.act == Act::RecvGrad;
  return next ? action.stage + 1 : action.stage - 1;
}

void check_peer(const Schedule& schedule, int rank, int step, const Action& action) {
  const int peer = peer_stage(action);
  if (peer < 0 || peer >= schedule.stages())
    refuse(schedule, "{}, but stage {} is the {}: there is no stage at the other end",
           who_does(rank, step, action), action.stage, peer < 0 ? "first" : "last");
  if (schedule.rank_of(peer) == rank)
    refuse(schedule, "{}, but stage {} is on the same rank: there is nothing to transfer",
           who_does(rank, step, action), peer);
}

void check_pair(const Schedule& schedule, int rank, int step) {
  const Program& program = schedule.programs[static_cast<std::size_t>(rank)];
  const auto at = static_cast<std::size_t>(step);
  const std::string first = who_does(rank, step, program[at]);
  if (at + 1 == program.size())
    refuse(schedule, "{} overlapped with the next action, but there is none", first);
  const Action& second = program[at + 1];
  const bool fits = program[at].act == Act::Forward && is_compute(second.act) &&
                    second.act != Act::Forward && second.join == Join::Alone;
  if (!fits)
    refuse(schedule, "{} overlapped with {}: a pair is one forward and then one backward", first,
           to_text(second));
}

void check_action(const Schedule& schedule, int rank, int step, const Action& action) {
  const auto& [stage, act, micro, join] = action;
  const std::string_view what = to_string(act);
  if (stage < 0 || stage >= schedule.stages())
    refuse(schedule, "{}, but there are {} stages", who_does(rank, step, action),
           schedule.stages());
  if (has_micro(act) && (micro < 0 || micro >= schedule.micros))
    refuse(schedule, "{}, but there are {} micro-batches", who_does(rank, step, action),
           schedule.micros);
  if (!has_micro(act) && micro != kNoMicro)
    refuse(schedule, "{}, but {} concerns a stage as a whole: leave out the micro-batch",
           who_does(rank, step, action), what);
  if (schedule.rank_of(stage) != rank)
    refuse(schedule, "{}, but stage {} is on rank {}", who_does(rank, step, action), stage,
           schedule.rank_of(stage));
  if (is_transfer(act)) check_peer(schedule, rank, step, action);
  if (join == Join::WithNext) check_pair(schedule, rank, step);
}

StepTable place_all(const Schedule& schedule) {
  StepTable steps(schedule);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    for (int step = 0; step < static_cast<int>(program.size()); ++step) {
      const Action& action = program[static_cast<std::size_t>(step)];
      check_action(schedule, rank, step, action);
      if (!has_micro(action.act)) continue;
      if (const int before = steps.put(action, step); before != kNoStep)
        refuse(schedule, "rank {} does {} twice, at steps {} and {}", rank, to_text(action),
               counted(before), counted(step));
    }
  }
  return steps;
}

/// Checks that there is one forward and one backward, whole or in two halves.
void check_work(const Schedule& schedule, const StepTable& steps, int stage, int micro) {
  const int rank = schedule.rank_of(stage);
  const auto has = [&](Act act) { return steps.step(act, stage, micro) != kNoStep; };
  const auto text = [&](Act act) { return to_text({stage, act, micro}); };
  const auto told = [&](Act act) {
    return who_does(rank, steps.step(act, stage, micro), {stage, act, micro});
  };
  if (!has(Act::Forward)) refuse(schedule, "rank {} never does {}", rank, text(Act::Forward));
  const bool input = has(Act::BackwardInput), weight = has(Act::BackwardWeight);
  if (has(Act::Backward) && (input || weight))
    refuse(schedule, "{}, and {} too: a backward is whole or in halves, not both",
           told(Act::Backward), text(input ? Act::BackwardInput : Act::BackwardWeight));
  if (has(Act::Backward) || (input && weight)) return;
  if (input)
    refuse(schedule, "{}, but never {}", told(Act::BackwardInput), text(Act::BackwardWeight));
  if (weight)
    refuse(schedule, "{}, but never {}", told(Act::BackwardWeight), text(Act::BackwardInput));
  refuse(schedule, "rank {} never does {} (nor its halves, {} and {})", rank, text(Act::Backward),
         text(Act::BackwardInput), text(Act::BackwardWeight));
}

/// Throws where `missing`, for which `waiting` waits, is in no program.
void check_present(const Schedule& schedule, const StepTable& steps, const Action& missing,
                   Action waiting) {
  if (steps.step(missing) != kNoStep) return;
  if (steps.step(waiting) == kNoStep) waiting.act = Act::BackwardInput;  // the split one
  const int rank = schedule.rank_of(waiting.stage);
  refuse(schedule, "rank {} never does {}, for which rank {} waits in {}, its step {}",
         schedule.rank_of(missing.stage), to_text(missing), rank, to_text(waiting),
         counted(steps.step(waiting)));
}

/// Checks the transfers between `stage` and the next one on another rank: both directions, both
/// ends.
void check_transfers(const Schedule& schedule, const StepTable& steps, int stage, int micro) {
  const int next = stage + 1;
  const Action recv_act{next, Act::RecvAct, micro}, recv_grad{stage, Act::RecvGrad, micro};
  check_present(schedule, steps, recv_act, {next, Act::Forward, micro});
  check_present(schedule, steps, {stage, Act::SendAct, micro}, recv_act);
  check_present(schedule, steps, recv_grad, {stage, Act::Backward, micro});
  check_present(schedule, steps, {next, Act::SendGrad, micro}, recv_grad);
}

}  // namespace

StepTable check_actions(const Schedule& schedule) {
  check_schedule_shape(schedule);
  StepTable steps = place_all(schedule);
  for (int stage = 0; stage < schedule.stages(); ++stage)
    for (int micro = 0; micro < schedule.micros; ++micro) check_work(schedule, steps, stage, micro);
  if (!steps.has_transfers()) return steps;
  for (int stage = 0; stage + 1 < schedule.stages(); ++stage)
    if (schedule.rank_of(stage) != schedule.rank_of(stage + 1))
      for (int micro = 0; micro < schedule.micros; ++micro)
        check_transfers(schedule, steps, stage, micro);
  return steps;
}

}  // namespace trireme::pipeline
