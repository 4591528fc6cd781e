#include <algorithm>

#include "trireme/pipeline/checks.h"

namespace trireme::pipeline {

namespace {

/// What a rank has done with one of its stages so far. Gradients pile up from one update to the
/// next, or over the whole program where there are none:
///
///     B B B REDUCE_GRAD UPDATE   B B REDUCE_GRAD UPDATE
struct StageState {
  bool ever_unsharded = false, unsharded = false;
  int resharded_at = kNowhere;
  int reduced_at = kNowhere;  ///< since the last update
  Action last_gradient{};     ///< not yet updated with; only if has_gradient
  bool has_gradient = false;
};

struct Uses {
  bool reduces = false, updates = false;
};

/// An action and where it stands; a sentence only if one is needed.
struct Told {
  int rank, step;
  const Action& action;
  std::string text() const { return who_does(rank, step, action); }
};

class StageWalk {
 public:
  StageWalk(const Schedule& schedule, Uses uses, int rank)
      : schedule_(schedule),
        uses_(uses),
        rank_(rank),
        stages_(static_cast<std::size_t>(schedule.stages())) {
    for (const Action& action : schedule.programs[static_cast<std::size_t>(rank)])
      state(action).ever_unsharded |= action.act == Act::Unshard;
  }

  void take(int step, const Action& action) {
    StageState& stage = state(action);
    const Told told{rank_, step, action};
    if (is_compute(action.act)) compute(stage, told);
    if (action.act == Act::Unshard) unshard(stage, told);
    if (action.act == Act::Reshard) reshard(stage, told);
    if (action.act == Act::ReduceGrad) reduce(stage, told);
    if (action.act == Act::Update) update(stage, told);
  }

  void finish(int stage) const {
    const StageState& left = stages_[static_cast<std::size_t>(stage)];
    if (!left.has_gradient) return;
    const std::string last = to_text(left.last_gradient);
    if (uses_.reduces && left.reduced_at == kNowhere)
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

  void compute(StageState& stage, const Told& told) {
    if (stage.ever_unsharded && !stage.unsharded) refuse_sharded(stage, told);
    if (!lets_go(told.action.act)) return;
    if (stage.reduced_at != kNowhere)
      refuse(schedule_, "{}, after {} at step {}{}: what it adds would never be summed",
             told.text(), to_text({told.action.stage, Act::ReduceGrad}), counted(stage.reduced_at),
             uses_.updates ? " and before " + to_text({told.action.stage, Act::Update}) : "");
    stage.last_gradient = told.action;
    stage.has_gradient = true;
  }

  [[noreturn]] void refuse_sharded(const StageState& stage, const Told& told) const {
    const int at = told.action.stage;
    if (stage.resharded_at != kNowhere)
      refuse(schedule_, "{}, but {} at step {} has let the weights go", told.text(),
             to_text({at, Act::Reshard}), counted(stage.resharded_at));
    refuse(schedule_, "{}, but {} has not been done", told.text(), to_text({at, Act::Unshard}));
  }

  [[noreturn]] void refuse_empty(const Told& told) const {
    const Program& program = schedule_.programs[static_cast<std::size_t>(rank_)];
    const auto later = std::find_if(
        program.begin() + told.step, program.end(),
        [&](const Action& a) { return a.stage == told.action.stage && lets_go(a.act); });
    if (later == program.end()) refuse(schedule_, "{}, but there is no new gradient", told.text());
    refuse(schedule_, "{}, but there is no new gradient before {}, its step {}", told.text(),
           to_text(*later), counted(static_cast<int>(later - program.begin())));
  }

  void unshard(StageState& stage, const Told& told) const {
    if (stage.unsharded) refuse(schedule_, "{}, but the stage is unsharded already", told.text());
    stage.unsharded = true;
  }

  void reshard(StageState& stage, const Told& told) const {
    if (!stage.unsharded) refuse_sharded(stage, told);
    stage.unsharded = false;
    stage.resharded_at = told.step;
  }

  void reduce(StageState& stage, const Told& told) const {
    if (stage.reduced_at != kNowhere)
      refuse(schedule_, "{}, but it was done at step {} already", told.text(),
             counted(stage.reduced_at));
    if (!stage.has_gradient) refuse_empty(told);
    stage.reduced_at = told.step;
  }

  void update(StageState& stage, const Told& told) const {
    if (!stage.has_gradient) refuse_empty(told);
    if (uses_.reduces && stage.reduced_at == kNowhere)
      refuse(schedule_, "{}, but {} has not been done", told.text(),
             to_text({told.action.stage, Act::ReduceGrad}));
    stage.has_gradient = false;
    stage.reduced_at = kNowhere;
  }

  const Schedule& schedule_;
  Uses uses_;
  int rank_;
  std::vector<StageState> stages_;
};

}  // namespace

void check_whole_stage_acts(const Schedule& schedule) {
  const Uses uses{.reduces = schedule.has(Act::ReduceGrad), .updates = schedule.has(Act::Update)};
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
