// The generators: each has the bubble and the memory that its paper states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/schedules.h"
#include "support/sentence.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/price.h"

namespace trireme::pipeline {
namespace {

using test::made;
using test::told;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Several times of the acts; I + W is B.
const std::vector<StageTimes> kTimes = {
    {.forward = 1, .backward = 2, .backward_input = 1, .backward_weight = 1},
    {.forward = 2, .backward = 4, .backward_input = 2.5, .backward_weight = 1.5},
    {.forward = 1, .backward = 2, .backward_input = 1.5, .backward_weight = 0.5},
};

/// The time that every rank is idle; all ranks do the same work.
double idle(const Timeline& timeline) {
  return timeline.end() - timeline.busy(0);
}

/// The time that a rank is idle between its first and last action.
double idle_inside(const Timeline& timeline, int rank) {
  const auto& spans = timeline.ranks[static_cast<size_t>(rank)];
  return spans.back().end - spans.front().begin - timeline.busy(rank);
}

int count(const Program& program, Act act) {
  return static_cast<int>(std::ranges::count(program, act, &Action::act));
}

/// The shapes of the tests: enough micro-batches for a steady state.
template <class Body>
void for_each_shape(Body body) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int micros = 2 * ranks; micros <= 4 * ranks; ++micros) body(ranks, micros);
}

// Huang et al. 2019, section 2.3: the bubble is (P-1)/(M+P-1) of the time; all M are alive.
TEST(GPipe, HasTheBubbleAndTheMemoryOfThePaper) {
  for_each_shape([](int ranks, int micros) {
    const Schedule schedule = make("gpipe", {ranks, micros});
    for (const StageTimes& times : kTimes)
      EXPECT_NEAR(price(schedule, {times}).bubble(), (ranks - 1.0) / (micros + ranks - 1), 1e-12);
    EXPECT_THAT(peak_in_flight(schedule), Each(micros));
  });
}

// Narayanan et al. 2021 (Megatron), section 2.2.1: the same bubble, and at most P alive.
TEST(OneFOneB, HasTheBubbleOfGPipeAndLessMemory) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int micros = 1; micros <= 12; ++micros) {
      const Schedule schedule = make("1f1b", {ranks, micros});
      EXPECT_NEAR(price(schedule, {kTimes[0]}).bubble(), (ranks - 1.0) / (micros + ranks - 1),
                  1e-12);
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(peak_in_flight(schedule)[static_cast<size_t>(rank)],
                  std::min(ranks - rank, micros));
    }
}

// Narayanan et al. 2021 (Megatron), section 2.2.2: pieces V times smaller, so (P-1)/(V*M+P-1); a
// rank begins with (V-1)*P + 2*(P-r-1) forwards and then has one more alive.
TEST(Interleaved, HasTheBubbleAndTheWarmUpOfThePaper) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int rounds = 2; rounds <= 4; ++rounds)
      for (int stages = 2; stages <= 4; ++stages) {
        const int micros = rounds * ranks;
        SCOPED_TRACE(told("interleaved", {ranks, micros, stages}));
        const Schedule schedule = make("interleaved", {ranks, micros, stages});
        for (const StageTimes& times : kTimes)
          EXPECT_NEAR(price(schedule, {times}).bubble(),
                      (ranks - 1.0) / (stages * micros + ranks - 1), 1e-12);
        for (int rank = 0; rank < ranks; ++rank) {
          const Program& program = schedule.programs[static_cast<size_t>(rank)];
          const auto first = std::ranges::find(program, Act::Backward, &Action::act);
          const int warmup = (stages - 1) * ranks + 2 * (ranks - rank - 1);
          EXPECT_EQ(first - program.begin(), warmup + 1);
          EXPECT_EQ(peak_in_flight(schedule)[static_cast<size_t>(rank)], warmup + 1);
        }
      }
}

TEST(Interleaved, TakesAnyNumberOfMicroBatchesWithTheSameBubbleTime) {
  for_each_shape([](int ranks, int micros) {
    for (int stages = 2; stages <= 3; ++stages) {
      const Timeline timeline = price(make("interleaved", {ranks, micros, stages}), {kTimes[0]});
      EXPECT_NEAR(idle(timeline), 3 * (ranks - 1), 1e-9) << ranks << " " << micros;
    }
  });
}

TEST(Interleaved, WithOneStagePerRankIsOneFOneB) {
  EXPECT_EQ(make("interleaved", {4, 6}).programs, make("1f1b", {4, 6}).programs);
}

// Lamy-Poirier 2022, section 4: the bubble of the interleaved one; everything is alive, and each
// stage is one run of forwards and one of backwards, so that its weights are gathered twice at
// most.
TEST(LoopedBfs, HasTheBubbleOfThePaperAndVisitsEachStageTwice) {
  for_each_shape([](int ranks, int micros) {
    for (int stages = 1; stages <= 3; ++stages) {
      const Schedule schedule = make("looped-bfs", {ranks, micros, stages});
      EXPECT_NEAR(price(schedule, {kTimes[0]}).bubble(),
                  (ranks - 1.0) / (stages * micros + ranks - 1), 1e-12);
      EXPECT_THAT(peak_in_flight(schedule), Each(stages * micros));
      for (const Program& program : schedule.programs) {
        int visits = 1;
        for (size_t i = 1; i < program.size(); ++i)
          visits += program[i].stage != program[i - 1].stage;
        EXPECT_EQ(visits, 2 * stages - 1);  // forwards and backwards of the last are one visit
      }
    }
  });
}

// Qi et al. 2023, table 1: bubble time (P-1)(F+I-W), memory that of 1F1B's first rank on every
// rank.
TEST(ZbH1, HasTheBubbleAndTheMemoryOfThePaper) {
  for_each_shape([](int ranks, int micros) {
    const Schedule schedule = make("zb-h1", {ranks, micros});
    for (const StageTimes& times : kTimes)
      EXPECT_NEAR(idle(price(schedule, {times})),
                  (ranks - 1) * (times.forward + times.backward_input - times.backward_weight),
                  1e-9);
    EXPECT_THAT(peak_in_flight(schedule), Each(peak_in_flight(make("1f1b", {ranks, micros}))[0]));
  });
}

// Qi et al. 2024, sections 2 and 3: where F = I = W no rank idles between its first and last
// action; 2P half stages alive, as much as the P whole ones of 1F1B.
TEST(ZbV, HasNoBubbleAndTheMemoryOfThePaper) {
  for_each_shape([](int ranks, int micros) {
    const Schedule schedule = make("zb-v", {ranks, micros});
    const Timeline timeline = price(schedule, {kTimes[0]});
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(idle_inside(timeline, rank), 0) << rank;
    EXPECT_EQ(timeline.end(), 6 * micros + ranks - 1) << "rank r begins r later, and ends r later";
    EXPECT_THAT(peak_in_flight(schedule), Each(2 * ranks));
  });
}

TEST(ZbV, TakesFewMicroBatchesToo) {
  for (int micros = 1; micros <= 6; ++micros) {
    const Schedule schedule = make("zb-v", {4, micros});
    EXPECT_NO_THROW(verify(schedule));
    EXPECT_EQ(schedule.micros, micros);
    EXPECT_EQ(schedule.placement, (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
  }
}

// DeepSeek's DualPipe repository, the table: PP stages on PP/2 ranks have a bubble time of
// (PP/2-1)(F&B + B - 3W) and PP + 1 alive. F&B is a pair: with us as long as its parts. Exact where
// F = I = W, from which the table is counted; never more elsewhere.
TEST(DualPipeV, HasTheBubbleAndTheMemoryOfTheTable) {
  for_each_shape([](int ranks, int micros) {
    const Schedule schedule = make("dualpipe-v", {ranks, micros});
    for (const StageTimes& times : kTimes) {
      const double pair = times.forward + times.backward;
      const double table = (ranks - 1) * (pair + times.backward - 3 * times.backward_weight);
      EXPECT_LE(idle(price(schedule, {times})), table + 1e-9)
          << told(schedule.name, {ranks, micros});
    }
    EXPECT_NEAR(idle(price(schedule, {kTimes[0]})), 2.0 * (ranks - 1), 1e-9);
    EXPECT_THAT(peak_in_flight(schedule), Each(2 * ranks + 1));
  });
}

TEST(DualPipeV, OverlapsAForwardWithABackwardOfTheOtherStage) {
  const Schedule schedule = make("dualpipe-v", {2, 8});
  int pairs = 0;
  for (const Program& program : schedule.programs)
    for (size_t i = 0; i < program.size(); ++i) {
      if (program[i].join == Join::Alone) continue;
      ++pairs;
      EXPECT_EQ(program[i].act, Act::Forward);
      EXPECT_EQ(program[i + 1].act, Act::Backward);
      EXPECT_EQ(program[i].stage + program[i + 1].stage, 3);
    }
  EXPECT_GT(pairs, 20);
}

// Narayanan et al. 2019, section 3: no bubble in the steady state, P - r alive (so many weights are
// kept), an update after every backward.
TEST(PipeDream, NeverIdlesInTheSteadyStateAndUpdatesAfterEveryBackward) {
  for_each_shape([](int ranks, int micros) {
    const Schedule schedule = make("pipedream", {ranks, micros});
    const Timeline timeline = price(schedule, {kTimes[0]});
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& spans = timeline.ranks[static_cast<size_t>(rank)];
      const auto first =
          std::ranges::find(spans, Act::Backward, [](const Span& span) { return span.action.act; });
      for (auto span = first + 1; span->action.micro < micros - 1; ++span)
        EXPECT_EQ(span->begin, (span - 1)->end) << "rank " << rank;
      EXPECT_EQ(peak_in_flight(schedule)[static_cast<size_t>(rank)], ranks - rank);
      const Program& program = schedule.programs[static_cast<size_t>(rank)];
      for (size_t i = 0; i < program.size(); ++i)
        EXPECT_EQ(program[i].act == Act::Backward,
                  i + 1 < program.size() && program[i + 1].act == Act::Update);
    }
  });
}

// Narayanan et al. 2021 (2BW), section 3.1: gradients of m >= P micro-batches make one update (m =
// P here), so that two versions of the weights are enough; otherwise as PipeDream.
TEST(PipeDream2Bw, UpdatesEveryPMicroBatchesSoThatTwoVersionsAreEnough) {
  for_each_shape([](int ranks, int micros) {
    const Schedule schedule = make("pipedream-2bw", {ranks, micros});
    for (int rank = 0; rank < ranks; ++rank) {
      const Program& program = schedule.programs[static_cast<size_t>(rank)];
      EXPECT_EQ(count(program, Act::Update), (micros + ranks - 1) / ranks);
      EXPECT_EQ(peak_in_flight(schedule)[static_cast<size_t>(rank)], ranks - rank);
      // How many updates lie between a micro-batch's forward and its backward?
      std::vector<int> began(static_cast<size_t>(micros));
      int updates = 0;
      for (const Action& action : program) {
        if (action.act == Act::Forward) began[static_cast<size_t>(action.micro)] = updates;
        if (action.act == Act::Backward) {
          EXPECT_LE(updates - began[static_cast<size_t>(action.micro)], 1);
        }
        updates += action.act == Act::Update;
      }
    }
  });
}

TEST(Schedule, KnowsWhichUpdateInTheMiddle) {
  for (const auto name : names())
    EXPECT_EQ(is_synchronous(name), !name.starts_with("pipedream")) << name;
}

TEST(Schedule, TellsTheStagesOfARank) {
  EXPECT_THAT(make("zb-v", {3, 6}).stages_of(1), ElementsAre(1, 4));
  EXPECT_THAT(make("interleaved", {3, 6, 2}).stages_of(1), ElementsAre(1, 4));
  EXPECT_THAT(make("looped-bfs", {2, 6, 3}).stages_of(0), ElementsAre(0, 2, 4));
}

TEST(Schedule, StagesPerRankAreTheSchedulesOwn) {
  for (const char* name : {"zb-v", "dualpipe-v"}) {
    EXPECT_EQ(stages_per_rank(name, 1), 2);
    EXPECT_EQ(stages_per_rank(name, 2), 2);
    EXPECT_EQ(make(name, {2, 4, 1}), make(name, {2, 4, 2}));
  }
  EXPECT_EQ(stages_per_rank("interleaved", 3), 3);
  EXPECT_EQ(stages_per_rank("gpipe", 1), 1);
}

TEST(Schedule, ShapesThatCannotBeAreRefusedWithTheNumbers) {
  const auto says = [](const char* name, Shape shape) {
    return test::sentence_of<ScheduleError>([&] { make(name, shape); });
  };
  EXPECT_THAT(says("1f2b", {2, 4}), AllOf(HasSubstr("'1f2b'"), HasSubstr("1f1b, interleaved")));
  EXPECT_THAT(says("1f1b", {2, 4, 3}), AllOf(HasSubstr("not 3"), HasSubstr("interleaved")));
  EXPECT_THAT(says("zb-v", {2, 4, 3}), HasSubstr("zb-v has 2 stages per rank, not 3"));
  EXPECT_THAT(says("dualpipe-v", {4, 7}),
              AllOf(HasSubstr("at least 8 micro-batches"), HasSubstr("not 7"), HasSubstr("zb-v")));
  EXPECT_THAT(says("gpipe", {0, 7}), HasSubstr("0 ranks"));
  EXPECT_THAT(says("gpipe", {2, 0}), HasSubstr("0 micro-batches"));
  EXPECT_THAT(says("interleaved", {2, 2, -1}), HasSubstr("-1 stages"));
  EXPECT_THAT(says("gpipe", {1 << 20, 1 << 20}), HasSubstr("more than"));
}

}  // namespace
}  // namespace trireme::pipeline
