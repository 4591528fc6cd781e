#include <algorithm>

#include "trireme/pipeline/checks.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/play.h"

namespace trireme::pipeline {

namespace {

/// A rank that cannot move: the action that it stands at, and the first one that this waits for.
struct Stuck {
  int rank, step;
  Action action, waits_for;
};

class Stall {
 public:
  Stall(const Schedule& schedule, const Places& places, const std::vector<int>& next)
      : schedule_(schedule), places_(places), next_(next) {}

  bool is_stuck(int rank) const {
    return at(rank) < static_cast<int>(schedule_.programs[static_cast<std::size_t>(rank)].size());
  }

  /// Ranks that wait for one another in a circle. All work is there, so every rank that is stuck
  /// waits for one that is stuck too, and whoever follows them comes round.
  ///
  ///     rank 0  ... | 0B1 ... 0F2         0B1 waits for 1B1, which stands behind 1F2,
  ///     rank 1  ... | 1F2 ... 1B1         which waits for 0F2, which stands behind 0B1
  std::vector<Stuck> circle() const {
    int rank = 0;
    while (!is_stuck(rank)) ++rank;
    std::vector<Stuck> path;
    std::vector<int> seen_at(schedule_.programs.size(), kNowhere);
    while (seen_at[static_cast<std::size_t>(rank)] == kNowhere) {
      seen_at[static_cast<std::size_t>(rank)] = static_cast<int>(path.size());
      path.push_back(stuck(rank));
      rank = schedule_.rank_of(path.back().waits_for.stage);
    }
    path.erase(path.begin(), path.begin() + seen_at[static_cast<std::size_t>(rank)]);
    return path;
  }

 private:
  int at(int rank) const { return next_[static_cast<std::size_t>(rank)]; }

  Stuck stuck(int rank) const {
    const Program& program = schedule_.programs[static_cast<std::size_t>(rank)];
    const Action* first = program.data() + at(rank);
    for (const Action* action = first; action < first + turn_size(*first); ++action)
      for (const Action& wanted : needs(*action, schedule_, places_))
        if (places_.step(wanted) >= at(schedule_.rank_of(wanted.stage)))
          return {rank, static_cast<int>(action - program.data()), *action, wanted};
    return {rank, at(rank), *first, *first};  // not reached: a rank that waits for nothing moves
  }

  const Schedule& schedule_;
  const Places& places_;
  const std::vector<int>& next_;
};

constexpr std::size_t kMostTold = 8;  // ranks of a circle; more make no sentence

}  // namespace

void verify(const Schedule& schedule) {
  const Places places = check_actions(schedule);
  check_whole_stage_acts(schedule);
  const std::vector<int> next = play(schedule, places, [](const Turn&) {});
  const Stall stall(schedule, places, next);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    if (!stall.is_stuck(rank)) continue;
    const std::vector<Stuck> circle = stall.circle();
    std::string story;
    for (std::size_t i = 0; i < std::min(circle.size(), kMostTold); ++i) {
      const auto& [who, step, action, wanted] = circle[i];
      story += fmt::format(
          "{}rank {} can never do {}, its step {}, which waits for {}, step {} of rank {}",
          i == 0 ? "" : "; ", who, to_text(action), counted(step), to_text(wanted),
          counted(places.step(wanted)), schedule.rank_of(wanted.stage));
    }
    if (circle.size() > kMostTold)
      story += fmt::format("; and so on round {} ranks", circle.size());
    refuse(schedule, "{}", story);
  }
}

}  // namespace trireme::pipeline
