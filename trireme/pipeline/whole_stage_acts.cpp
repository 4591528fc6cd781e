#include <algorithm>

#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/play.h"

namespace trireme::pipeline {

namespace {

bool has(const Program& program, int stage, Act act) {
  return std::ranges::any_of(program,
                             [&](const Action& a) { return a.stage == stage && a.act == act; });
}

/// Inserts an action before the one at `at` and the receives of that one.
void put_before(Program& program, std::size_t at, const Action& action) {
  if (at > 0 && program[at - 1].join == Join::WithNext) --at;
  while (at > 0 && is_receive(program[at - 1].act)) --at;
  program.insert(program.begin() + static_cast<std::ptrdiff_t>(at), action);
}

/// Inserts an action after the one at `at`, its pair, and the following ones that go first.
template <class GoesFirst>
void put_after(Program& program, std::size_t at, const Action& action, GoesFirst goes_first) {
  if (program[at].join == Join::WithNext) ++at;
  ++at;
  while (at < program.size() && goes_first(program[at])) ++at;
  program.insert(program.begin() + static_cast<std::ptrdiff_t>(at), action);
}

// The order after the last backward of a stage: send the gradient, reduce, reshard.
bool sends(const Action& action) {
  return is_send(action.act);
}
bool sends_or_reduces(const Action& action) {
  return is_send(action.act) || action.act == Act::ReduceGrad;
}

void reduce_stage(Program& program, int stage) {
  if (has(program, stage, Act::ReduceGrad)) return;
  const bool updates = has(program, stage, Act::Update);
  for (std::size_t at = program.size(), pending = 1; at-- > 0;) {
    const Action& action = program[at];
    if (action.stage != stage) continue;
    if (action.act == Act::Update) pending = 1;  // one before each update
    if (!completes_backward(action.act) || pending == 0) continue;
    put_after(program, at, {stage, Act::ReduceGrad}, sends);
    pending = 0;
    if (!updates) return;
  }
}

void unshard_stage(Program& program, int stage) {
  if (has(program, stage, Act::Unshard) || has(program, stage, Act::Reshard)) return;
  const auto uses = [&](const Action& a) { return a.stage == stage && is_compute(a.act); };
  const auto last = std::find_if(program.rbegin(), program.rend(), uses);
  if (last == program.rend()) return;
  put_after(program, static_cast<std::size_t>(program.rend() - last) - 1, {stage, Act::Reshard},
            sends_or_reduces);
  const auto first = std::find_if(program.begin(), program.end(), uses);
  put_before(program, static_cast<std::size_t>(first - program.begin()), {stage, Act::Unshard});
}

}  // namespace

Schedule with_unshards(Schedule schedule) {
  for (int stage = 0; stage < schedule.stages(); ++stage)
    unshard_stage(schedule.programs[static_cast<std::size_t>(schedule.rank_of(stage))], stage);
  return schedule;
}

Schedule with_reduces(Schedule schedule) {
  for (int stage = 0; stage < schedule.stages(); ++stage)
    reduce_stage(schedule.programs[static_cast<std::size_t>(schedule.rank_of(stage))], stage);
  return schedule;
}

}  // namespace trireme::pipeline
