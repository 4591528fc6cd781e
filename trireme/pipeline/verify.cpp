#include <algorithm>

#include "trireme/pipeline/checks.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/play.h"

namespace trireme::pipeline {

namespace {

/// A rank that cannot continue: its next action, and the first action that this waits for.
struct BlockedRank {
  int rank, step;
  Action action, waits_for;
};

/// The state in which `play` stopped: `next` is the first step that each rank has not done.
class Deadlock {
 public:
  Deadlock(const Schedule& schedule, const StepTable& steps, const std::vector<int>& next)
      : schedule_(schedule), steps_(steps), next_(next) {}

  bool is_blocked(int rank) const {
    return at(rank) < static_cast<int>(schedule_.programs[static_cast<std::size_t>(rank)].size());
  }

  /// Ranks that wait for one another in a cycle. No action is missing, so every blocked rank waits
  /// for a blocked rank, and following these reaches a rank twice.
  ///
  ///     rank 0  ... | 0B1 ... 0F2         0B1 waits for 1B1, which comes after 1F2,
  ///     rank 1  ... | 1F2 ... 1B1         which waits for 0F2, which comes after 0B1
  std::vector<BlockedRank> cycle() const {
    int rank = 0;
    while (!is_blocked(rank)) ++rank;
    std::vector<BlockedRank> path;
    std::vector<int> seen_at(schedule_.programs.size(), kNoStep);
    while (seen_at[static_cast<std::size_t>(rank)] == kNoStep) {
      seen_at[static_cast<std::size_t>(rank)] = static_cast<int>(path.size());
      path.push_back(blocked(rank));
      rank = schedule_.rank_of(path.back().waits_for.stage);
    }
    path.erase(path.begin(), path.begin() + seen_at[static_cast<std::size_t>(rank)]);
    return path;
  }

 private:
  int at(int rank) const { return next_[static_cast<std::size_t>(rank)]; }

  BlockedRank blocked(int rank) const {
    const Program& program = schedule_.programs[static_cast<std::size_t>(rank)];
    const Action* first = program.data() + at(rank);
    for (const Action* action = first; action < first + num_joined(*first); ++action)
      for (const Action& wanted : dependencies(*action, schedule_, steps_))
        if (steps_.step(wanted) >= at(schedule_.rank_of(wanted.stage)))
          return {rank, static_cast<int>(action - program.data()), *action, wanted};
    return {rank, at(rank), *first, *first};  // not reached: a rank that waits for nothing moves
  }

  const Schedule& schedule_;
  const StepTable& steps_;
  const std::vector<int>& next_;
};

constexpr std::size_t kMostNamed = 8;  // ranks of a cycle that a message names

}  // namespace

void verify(const Schedule& schedule) {
  const StepTable steps = check_actions(schedule);
  check_whole_stage_acts(schedule);
  const std::vector<int> next = play(schedule, steps, [](const JoinedActions&) {});
  const Deadlock deadlock(schedule, steps, next);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    if (!deadlock.is_blocked(rank)) continue;
    const std::vector<BlockedRank> cycle = deadlock.cycle();
    std::string sentence;
    for (std::size_t i = 0; i < std::min(cycle.size(), kMostNamed); ++i) {
      const auto& [who, step, action, wanted] = cycle[i];
      sentence += fmt::format(
          "{}rank {} can never do {}, its step {}, which waits for {}, step {} of rank {}",
          i == 0 ? "" : "; ", who, to_text(action), counted(step), to_text(wanted),
          counted(steps.step(wanted)), schedule.rank_of(wanted.stage));
    }
    if (cycle.size() > kMostNamed)
      sentence += fmt::format("; and so on, in a cycle of {} ranks", cycle.size());
    refuse(schedule, "{}", sentence);
  }
}

}  // namespace trireme::pipeline
