// Schedules that do not drain: a period, its delays, and the versions of the weights that it needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/sentence.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/periodic.h"

namespace trireme::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Every small shape that the schedule can have.
template <class Body>
void for_each_shape(const char* name, Body body) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int micros = name == std::string("pipedream-2bw") ? ranks : 1; micros <= 8; ++micros)
      body(Shape{ranks, micros});
}

TEST(PeriodicSchedule, UnrolledItIsTheScheduleThatIsDrawn) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int steps = 1; steps <= 7; ++steps) {
      EXPECT_EQ(unrolled(make_periodic("pipedream", {ranks, 1}), steps),
                make("pipedream", {ranks, steps}));
      EXPECT_EQ(unrolled(make_periodic("pipedream-2bw", {ranks, ranks}), steps),
                make("pipedream-2bw", {ranks, ranks * steps}));
    }
}

TEST(PeriodicSchedule, CanRunFromAnyStepToAnyStep) {
  for (const char* name : {"pipedream", "pipedream-2bw"})
    for_each_shape(name, [&](Shape shape) {
      const PeriodicSchedule schedule = make_periodic(name, shape);
      EXPECT_NO_THROW(verify(schedule));
      for (int steps = 1; steps <= schedule.depth() + 2; ++steps)
        EXPECT_NO_THROW(verify(with_reduces(with_transfers(unrolled(schedule, steps)))));
    });
}

// Narayanan et al. 2019, section 3.3: P - r versions on rank r; with vertical sync P on all.
TEST(PeriodicSchedule, PipeDreamKeepsThePapersVersions) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    const auto stashed = make_periodic("pipedream", {ranks, 1});
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(stashed.delay_of(rank), ranks - 1 - rank);
      EXPECT_EQ(peak_versions(stashed)[static_cast<size_t>(rank)], ranks - rank);
    }
    const auto vertical = make_periodic("pipedream", {ranks, 1}, VersionSync::Vertical);
    EXPECT_THAT(vertical.delays, Each(ranks - 1));
    EXPECT_THAT(peak_versions(vertical), Each(ranks));
  }
  EXPECT_THAT(make_periodic("pipedream", {4, 2}).delays, ElementsAre(2, 1, 1, 0));
}

// Narayanan et al. 2021 (2BW), section 3.1: two versions, a delay of one on every stage, if m >= P.
TEST(PeriodicSchedule, TwoBwKeepsTwoVersions) {
  for_each_shape("pipedream-2bw", [](Shape shape) {
    const auto schedule = make_periodic("pipedream-2bw", shape);
    EXPECT_THAT(schedule.delays, Each(1));
    EXPECT_THAT(peak_versions(schedule), Each(2));
  });
}

TEST(PeriodicSchedule, AStepTakesTheTimeOfTheSlowestStageOnceThePipeIsFull) {
  for (const char* name : {"pipedream", "pipedream-2bw"})
    for_each_shape(name, [&](Shape shape) {
      const auto schedule = make_periodic(name, shape);
      EXPECT_NEAR(price_period(schedule, {{.update = 0.5}}), 3 * shape.micros + 0.5, 1e-9);
      std::vector<StageTimes> times;
      for (int stage = 0; stage < shape.ranks; ++stage)
        times.push_back({.forward = 1.0 + stage, .backward = 2, .update = 0.25});
      EXPECT_NEAR(price_period(schedule, times), (2.0 + shape.ranks) * shape.micros + 0.25, 1e-9);
    });
}

TEST(PeriodicSchedule, TheFirstStepsAreThePeriodWithoutWhatWasNeverBegun) {
  const auto schedule = make_periodic("pipedream-2bw", {2, 2});
  const auto text = [](const AgedProgram& program) {
    std::string all;
    for (const auto& [action, age] : program)
      all += to_text(action) + "@" + std::to_string(age) + " ";
    return all;
  };
  EXPECT_EQ(text(schedule.step(0, 0)), "0F0@0 0F1@0 0B0@0 ");
  EXPECT_EQ(text(schedule.step(0, 1)), "0F0@0 0B1@1 0UPDATE@1 0F1@0 0B0@0 ");
  EXPECT_EQ(text(schedule.step(1, 0)), "1F0@0 1B0@0 1F1@0 1B1@0 1UPDATE@0 ");
  EXPECT_EQ(text(schedule.epilogue(0, 3)), "0B1@0 0UPDATE@0 ");
  EXPECT_EQ(text(schedule.epilogue(1, 3)), "");
}

TEST(PeriodicSchedule, WhatCannotBeIsRefusedWithTheNumbers) {
  const auto says = [](const std::function<void()>& body) {
    return test::sentence_of<ScheduleError>(body);
  };
  EXPECT_THAT(says([] {
                make_periodic("pipedream-2bw", {4, 3});
              }),
              AllOf(HasSubstr("3 micro-batches a step on 4 ranks"), HasSubstr("at least 4")));
  EXPECT_THAT(says([] { make_periodic("1f1b", {4, 4}); }), HasSubstr("1f1b drains the pipe"));
  EXPECT_THAT(says([] { make_periodic("pipedream", {2, 2, 2}); }), HasSubstr("1 stage per rank"));
  EXPECT_THAT(says([] {
                unrolled(make_periodic("pipedream", {2, 2}), 1 << 30);
              }),
              HasSubstr("more than the limit"));
  // Fewer updates late than steps are in flight: the weights are not there yet.
  auto hasty = make_periodic("pipedream", {3, 1});
  hasty.delays[0] = 1;
  EXPECT_THAT(says([&] { verify(hasty); }),
              AllOf(HasSubstr("rank 0 does 0F0 of step 3 with the weights after update 1"),
                    HasSubstr("only 0 updates")));
  // The update of a step before its last backward, which would then see other weights.
  auto early = make_periodic("pipedream-2bw", {2, 2});
  std::swap(early.drain[0][0], early.drain[0][1]);
  EXPECT_THAT(says([&] { verify(early); }),
              AllOf(HasSubstr("rank 0 does 0B1"), HasSubstr("keeps only those after update")));
}

}  // namespace
}  // namespace trireme::pipeline
