#include <algorithm>

#include "trireme/pipeline/checks.h"

namespace trireme::pipeline {

namespace {

/// What a rank has done with one of its stages so far. Gradients accumulate from one update to the
/// next, or over the whole program where there are no updates:
///
///     B B B REDUCE_GRAD UPDATE   B B REDUCE_GRAD UPDATE
struct StageState {
  bool ever_unsharded = false, unsharded = false;
  int resharded_at = kNoStep;
  int reduced_at = kNoStep;  ///< since the last update
  Action last_gradient{};    ///< since the last update; valid if has_gradient
  bool has_gradient = false;
};

/// Which acts the schedule contains.
struct ActsUsed {
  bool reduces = false, updates = false;
};

/// An action and its place; the text is made only if a message needs it.
struct PlacedAction {
  int rank, step;
  const Action& action;
  std::string text() const { return who_does(rank, step, action); }
};

class StageWalk {
 public:
  StageWalk(const Schedule& schedule, ActsUsed uses, int rank)
      : schedule_(schedule),
        uses_(uses),
        rank_(rank),
        stages_(static_cast<std::size_t>(schedule.stages())) {
    for (const Action& action : schedule.programs[static_cast<std::size_t>(rank)])
      state(action).ever_unsharded |= action.act == Act::Unshard;
  }

  void take(int step, const Action& action) {
    StageState& stage = state(action);
    const PlacedAction placed{rank_, step, action};
    if (is_compute(action.act)) compute(stage, placed);
    if (action.act == Act::Unshard) unshard(stage, placed);
    if (action.act == Act::Reshard) reshard(stage, placed);
    if (action.act == Act::ReduceGrad) reduce(stage, placed);
    if (action.act == Act::Update) update(stage, placed);
  }

  void finish(int stage) const {
    const StageState& left = stages_[static_cast<std::size_t>(stage)];
    if (!left.has_gradient) return;
    const std::string last = to_text(left.last_gradient);
    if (uses_.reduces && left.reduced_at == kNoStep)
      refuse(schedule_, "rank {} never does {} after {}, its last gradient", rank_,
             to_text({stage, Act::ReduceGrad}), last);
    if (uses_.updates)
      refuse(schedule_, "rank {} never does {} after {}, its last gradient", rank_,
             to_text({stage, Act::Update}), last);
  }

 private:
  StageState& state(const Action& action) {
    return stages_[static_cast<std::size_t>(action.stage)];
  }

  void compute(StageState& stage, const PlacedAction& placed) {
    if (stage.ever_unsharded && !stage.unsharded) refuse_sharded(stage, placed);
    if (!completes_backward(placed.action.act)) return;
    if (stage.reduced_at != kNoStep)
      refuse(schedule_, "{}, after {} at step {}{}: its gradients would never be reduced",
             placed.text(), to_text({placed.action.stage, Act::ReduceGrad}),
             counted(stage.reduced_at),
             uses_.updates ? " and before " + to_text({placed.action.stage, Act::Update}) : "");
    stage.last_gradient = placed.action;
    stage.has_gradient = true;
  }

  [[noreturn]] void refuse_sharded(const StageState& stage, const PlacedAction& placed) const {
    const int at = placed.action.stage;
    if (stage.resharded_at != kNoStep)
      refuse(schedule_, "{}, but {} at step {} has released the weights", placed.text(),
             to_text({at, Act::Reshard}), counted(stage.resharded_at));
    refuse(schedule_, "{}, but {} has not been done", placed.text(), to_text({at, Act::Unshard}));
  }

  [[noreturn]] void refuse_empty(const PlacedAction& placed) const {
    const Program& program = schedule_.programs[static_cast<std::size_t>(rank_)];
    const auto later =
        std::find_if(program.begin() + placed.step, program.end(), [&](const Action& a) {
          return a.stage == placed.action.stage && completes_backward(a.act);
        });
    if (later == program.end())
      refuse(schedule_, "{}, but there is no new gradient", placed.text());
    refuse(schedule_, "{}, but there is no new gradient before {}, its step {}", placed.text(),
           to_text(*later), counted(static_cast<int>(later - program.begin())));
  }

  void unshard(StageState& stage, const PlacedAction& placed) const {
    if (stage.unsharded) refuse(schedule_, "{}, but the stage is unsharded already", placed.text());
    stage.unsharded = true;
  }

  void reshard(StageState& stage, const PlacedAction& placed) const {
    if (!stage.unsharded) refuse_sharded(stage, placed);
    stage.unsharded = false;
    stage.resharded_at = placed.step;
  }

  void reduce(StageState& stage, const PlacedAction& placed) const {
    if (stage.reduced_at != kNoStep)
      refuse(schedule_, "{}, but it was done at step {} already", placed.text(),
             counted(stage.reduced_at));
    if (!stage.has_gradient) refuse_empty(placed);
    stage.reduced_at = placed.step;
  }

  void update(StageState& stage, const PlacedAction& placed) const {
    if (!stage.has_gradient) refuse_empty(placed);
    if (uses_.reduces && stage.reduced_at == kNoStep)
      refuse(schedule_, "{}, but {} has not been done", placed.text(),
             to_text({placed.action.stage, Act::ReduceGrad}));
    stage.has_gradient = false;
    stage.reduced_at = kNoStep;
  }

  const Schedule& schedule_;
  ActsUsed uses_;
  int rank_;
  std::vector<StageState> stages_;
};

}  // namespace

void check_whole_stage_acts(const Schedule& schedule) {
  const ActsUsed uses{.reduces = schedule.has(Act::ReduceGrad),
                      .updates = schedule.has(Act::Update)};
  const bool unshards = schedule.has(Act::Unshard) || schedule.has(Act::Reshard);
  if (!uses.reduces && !uses.updates && !unshards) return;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    StageWalk walk(schedule, uses, rank);
    int step = 0;
    for (const Action& action : schedule.programs[static_cast<std::size_t>(rank)])
      walk.take(step++, action);
    for (const int stage : schedule.stages_of(rank)) walk.finish(stage);
  }
}

}  // namespace trireme::pipeline
