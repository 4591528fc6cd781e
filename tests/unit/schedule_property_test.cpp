// What holds for every schedule of every small shape.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "support/schedules.h"
#include "support/sentence.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/price.h"
#include "trireme/pipeline/text.h"

namespace trireme::pipeline {
namespace {

using test::for_each_schedule;
using test::outcome_of;
using test::told;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Schedule complete(const Schedule& schedule) {
  return with_reduces(with_unshards(with_transfers(schedule)));
}

std::string problem_of(const Schedule& schedule) {
  return outcome_of<ScheduleError>([&] { verify(schedule); });
}

/// A second judge, slow and simple: can the work of these programs, which is all there, be done in
/// this order? It knows nothing of transfers.
bool can_run(const Schedule& schedule) {
  std::set<Action> done;
  const auto plain = [](Action action) {
    action.join = Join::Alone;
    return action;
  };
  const auto has_gradient = [&](int stage, int micro) {
    return done.contains({stage, Act::Backward, micro}) ||
           done.contains({stage, Act::BackwardInput, micro});
  };
  const auto ready = [&](const Action& a) {
    if (a.act == Act::Forward) return a.stage == 0 || done.contains({a.stage - 1, a.act, a.micro});
    if (a.act == Act::BackwardWeight) return done.contains({a.stage, Act::BackwardInput, a.micro});
    if (!gives_gradient(a.act)) return true;
    return done.contains({a.stage, Act::Forward, a.micro}) &&
           (a.stage + 1 == schedule.stages() || has_gradient(a.stage + 1, a.micro));
  };
  std::vector<size_t> next(schedule.programs.size(), 0);
  size_t left = 0;
  for (const Program& program : schedule.programs) left += program.size();
  for (bool moved = true; std::exchange(moved, false);)
    for (size_t rank = 0; rank < next.size(); ++rank) {
      const Program& program = schedule.programs[rank];
      if (next[rank] == program.size()) continue;
      const size_t size = program[next[rank]].join == Join::WithNext ? 2 : 1;
      const auto first = program.begin() + static_cast<std::ptrdiff_t>(next[rank]);
      if (!std::all_of(first, first + static_cast<std::ptrdiff_t>(size), ready)) continue;
      for (size_t i = 0; i < size; ++i) done.insert(plain(program[next[rank] + i]));
      next[rank] += size;
      left -= size;
      moved = true;
    }
  return left == 0;
}

TEST(EverySchedule, VerifiesWithAndWithoutTransfers) {
  int made = 0;
  for_each_schedule([&](const Schedule& schedule) {
    ++made;
    EXPECT_EQ(problem_of(schedule), test::kNothingThrown) << told(schedule);
    EXPECT_EQ(problem_of(with_transfers(schedule)), test::kNothingThrown) << told(schedule);
    EXPECT_EQ(problem_of(complete(schedule)), test::kNothingThrown) << told(schedule);
    EXPECT_TRUE(can_run(schedule)) << told(schedule);
  });
  EXPECT_GT(made, 900);
}

TEST(EverySchedule, DoesEveryPieceOfWorkOnceOnItsRank) {
  for_each_schedule([](const Schedule& schedule) {
    std::multiset<Action> work;
    for (int rank = 0; rank < schedule.ranks(); ++rank)
      for (Action action : schedule.programs[static_cast<size_t>(rank)]) {
        EXPECT_EQ(schedule.rank_of(action.stage), rank) << told(schedule);
        action.join = Join::Alone;
        work.insert(action);
      }
    for (int stage = 0; stage < schedule.stages(); ++stage)
      for (int micro = 0; micro < schedule.micros; ++micro) {
        const auto count = [&](Act act) { return work.count({stage, act, micro}); };
        EXPECT_EQ(count(Act::Forward), 1u) << told(schedule);
        EXPECT_EQ(count(Act::Backward) + count(Act::BackwardInput), 1u) << told(schedule);
        EXPECT_EQ(count(Act::BackwardInput), count(Act::BackwardWeight)) << told(schedule);
      }
  });
}

TEST(EverySchedule, ComesBackFromItsText) {
  for_each_schedule([](const Schedule& schedule) {
    EXPECT_EQ(parse_csv(schedule.name, to_csv(schedule)), schedule) << told(schedule);
    const Schedule full = complete(schedule);
    EXPECT_EQ(parse_csv(full.name, to_csv(full)), full) << told(schedule);
  });
}

TEST(EverySchedule, IsLeftAloneByAPassThatHasBeenDone) {
  for_each_schedule([](const Schedule& schedule) {
    const Schedule full = complete(schedule);
    EXPECT_EQ(complete(full), full) << told(schedule);
    EXPECT_EQ(with_transfers(with_unshards(with_reduces(schedule))), full)
        << told(schedule) << ": the order of the passes makes no difference";
  });
}

/// The longest chain of work that waits for one another: a micro-batch forward through all stages,
/// its gradient back, and the last weight half.
double critical_path(const Schedule& schedule, const StageTimes& times) {
  std::vector<double> chains(static_cast<size_t>(schedule.micros), 0);
  for (const Program& program : schedule.programs)
    for (const Action& action : program) {
      if (!is_compute(action.act)) continue;
      double& chain = chains[static_cast<size_t>(action.micro)];
      if (action.act == Act::Forward) chain += times.forward;
      if (action.act == Act::Backward) chain += times.backward;
      if (action.act == Act::BackwardInput) chain += times.backward_input;
      if (action.act == Act::BackwardWeight && action.stage == 0) chain += times.backward_weight;
    }
  return *std::ranges::max_element(chains);
}

TEST(EverySchedule, TakesAtLeastItsCriticalPathAndIsBusyOrIdle) {
  const StageTimes times{
      .forward = 2, .backward = 5, .backward_input = 2, .backward_weight = 3, .transfer = 0};
  for_each_schedule([&](const Schedule& schedule) {
    const Timeline timeline = price(schedule, {times});
    EXPECT_GE(timeline.end(), critical_path(schedule, times)) << told(schedule);
    double all_idle = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      double at = 0, idle = 0;
      for (const Span& span : timeline.ranks[static_cast<size_t>(rank)]) {
        EXPECT_GE(span.begin, at) << told(schedule) << ": one thing at a time";
        idle += span.begin - at;
        at = span.end;
      }
      idle += timeline.end() - at;
      all_idle += idle;
      EXPECT_EQ(timeline.busy(rank) + idle, timeline.end()) << told(schedule);
    }
    EXPECT_NEAR(timeline.bubble(), all_idle / (timeline.end() * schedule.ranks()), 1e-12);
  });
}

TEST(EverySchedule, TakesAsLongWithItsTransfersWrittenOut) {
  const StageTimes times{.transfer = 0.5};
  for_each_schedule([&](const Schedule& schedule) {
    EXPECT_EQ(price(schedule, {times}).end(), price(complete(schedule), {times}).end())
        << told(schedule);
  });
}

/// One random change to one rank's program, and the actions that it concerns.
struct Change {
  Schedule schedule;
  std::vector<Action> concerned;
};

class Changes {
 public:
  Change drop(Schedule schedule) {
    auto [program, at] = pick(schedule);
    const Action dropped = (*program)[at];
    if (at > 0) (*program)[at - 1].join = Join::Alone;
    program->erase(program->begin() + static_cast<std::ptrdiff_t>(at));
    return {std::move(schedule), {dropped}};
  }

  Change repeat(Schedule schedule) {
    auto [program, at] = pick(schedule);
    Action again = (*program)[at];
    again.join = Join::Alone;
    size_t where = random_() % (program->size() + 1);
    if (where > 0 && (*program)[where - 1].join == Join::WithNext) ++where;
    program->insert(program->begin() + static_cast<std::ptrdiff_t>(where), again);
    return {std::move(schedule), {again}};
  }

  Change swap(Schedule schedule) {
    auto [program, at] = pick(schedule);
    Action &one = (*program)[at], &other = (*program)[random_() % program->size()];
    std::swap(one, other);
    std::swap(one.join, other.join);  // pairs stay where they are
    return {std::move(schedule), {one, other}};
  }

 private:
  std::pair<Program*, size_t> pick(Schedule& schedule) {
    Program& program = schedule.programs[random_() % schedule.programs.size()];
    return {&program, random_() % program.size()};
  }

  std::mt19937 random_{1};
};

bool names_one(const std::string& sentence, const Change& change) {
  return std::ranges::any_of(change.concerned, [&](const Action& action) {
    return sentence.find(to_text(action)) != sentence.npos;
  });
}

TEST(EverySchedule, WithWorkDroppedOrRepeatedIsRefusedByName) {
  Changes changes;
  for_each_schedule([&](const Schedule& schedule) {
    for (const Schedule& whole : {schedule, with_transfers(schedule)})
      for (int i = 0; i < 4; ++i) {
        const Change change = i % 2 == 0 ? changes.drop(whole) : changes.repeat(whole);
        if (!has_micro(change.concerned[0].act)) continue;  // an update more or less may be right
        const std::string sentence = problem_of(change.schedule);
        EXPECT_TRUE(names_one(sentence, change))
            << told(schedule) << (i % 2 == 0 ? " without " : " twice ")
            << to_text(change.concerned[0]) << ": " << sentence;
      }
  });
}

TEST(EverySchedule, WithTwoActionsSwappedIsRefusedByNameExactlyIfItCannotRun) {
  Changes changes;
  int refused = 0;
  for_each_schedule([&](const Schedule& schedule) {
    if (!is_synchronous(schedule.name)) return;  // the second judge knows no updates
    for (int i = 0; i < 6; ++i) {
      const Change change = changes.swap(schedule);
      const std::string sentence = problem_of(change.schedule);
      const bool accepted = sentence == test::kNothingThrown;
      refused += !accepted;
      // A pair may have become one of two forwards, which the second judge does not mind.
      if (sentence.find("a pair is") == sentence.npos) {
        EXPECT_EQ(accepted, can_run(change.schedule)) << told(schedule) << ": " << sentence;
      }
      EXPECT_TRUE(accepted || names_one(sentence, change)) << told(schedule) << ": " << sentence;
    }
  });
  EXPECT_GT(refused, 1000);
}

TEST(EverySchedule, CompletedAndThenChangedIsRefusedByNameOrCanRun) {
  Changes changes;
  for_each_schedule([&](const Schedule& schedule) {
    const Schedule full = complete(schedule);
    for (int i = 0; i < 6; ++i) {
      // With updates in the middle, what has moved and what it has moved past look the same.
      if (i % 3 == 2 && !is_synchronous(schedule.name)) continue;
      const Change change = i % 3 == 0   ? changes.drop(full)
                            : i % 3 == 1 ? changes.repeat(full)
                                         : changes.swap(full);
      const std::string sentence = problem_of(change.schedule);
      EXPECT_TRUE(sentence == test::kNothingThrown || names_one(sentence, change))
          << told(schedule) << " " << i % 3 << " " << to_text(change.concerned[0]) << " "
          << sentence;
    }
  });
}

/// The order of an evaluation, for every placement of stages. Whoever follows his program and waits
/// for his input, and on the first stage for the end of an earlier micro-batch, comes to the end.
TEST(EverySchedule, EvaluatesInAnOrderThatNeverWaitsInACircleAndKeepsFewInFlight) {
  test::for_each_schedule([](const Schedule& schedule) {
    const int last = schedule.stages() - 1, window = most_in_flight(schedule);
    for (const int micros : {1, 5, 40}) {
      const Schedule order = forwards_only(schedule, micros);
      std::vector<size_t> next(order.programs.size(), 0);
      std::vector<int> done(order.placement.size(), 0);
      int most = 0;
      const auto can = [&](const Action& action) {
        return action.stage == 0 ? action.micro < done.back() + window
                                 : action.micro < done[static_cast<size_t>(action.stage) - 1];
      };
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t rank = 0; rank < next.size(); ++rank) {
          // As far as it can get: the others may be slow.
          while (next[rank] < order.programs[rank].size() &&
                 can(order.programs[rank][next[rank]])) {
            const Action& action = order.programs[rank][next[rank]++];
            ASSERT_EQ(order.rank_of(action.stage), static_cast<int>(rank));
            ASSERT_EQ(action.micro, done[static_cast<size_t>(action.stage)]++) << "in their order";
            most = std::max(most, done.front() - done[static_cast<size_t>(last)]);
            moved = true;
          }
        }
      }
      EXPECT_EQ(done, std::vector<int>(order.placement.size(), micros)) << test::told(schedule);
      EXPECT_LE(most, window) << test::told(schedule);
    }
  });
}

/// Every rank works without a pause once the pipe is full, whether stages lie in a loop or in a V.
TEST(EverySchedule, EvaluatesWithoutIdleTimeInTheMiddle) {
  for (const char* name : {"1f1b", "interleaved", "zb-v"}) {
    const int wanted = std::string_view(name) == "interleaved" ? 2 : 1;  // others have their own
    const Schedule schedule = make(name, {.ranks = 4, .micros = 16, .stages_per_rank = wanted});
    const Schedule order = forwards_only(schedule, 16);
    const int per_rank = schedule.stages() / 4;
    std::vector<int> ends(static_cast<size_t>(schedule.stages() * 16), 0), free(4, 0);
    std::vector<size_t> next(4, 0);
    for (int left = schedule.stages() * 16; left > 0;) {
      for (size_t rank = 0; rank < 4; ++rank) {
        if (next[rank] == order.programs[rank].size()) continue;
        const Action& action = order.programs[rank][next[rank]];
        const auto at = [&](int stage) { return static_cast<size_t>(stage * 16 + action.micro); };
        const int input = action.stage == 0 ? 0 : ends[at(action.stage - 1)];
        if (action.stage > 0 && input == 0) continue;
        ends[at(action.stage)] = free[rank] = std::max(free[rank], input) + 1;
        ++next[rank];
        --left;
      }
    }
    // All work of a rank, and what it waits for the first and after the last micro-batch.
    EXPECT_LE(*std::ranges::max_element(free), 16 * per_rank + schedule.stages()) << name;
  }
}

}  // namespace
}  // namespace trireme::pipeline
