// When each action runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/sentence.h"
#include "trireme/core/error.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/price.h"
#include "trireme/pipeline/text.h"

namespace trireme::pipeline {
namespace {

using ::testing::HasSubstr;

const Span& span_of(const Timeline& timeline, int rank, const std::string& action) {
  for (const Span& span : timeline.ranks[static_cast<size_t>(rank)])
    if (to_text(span.action) == action) return span;
  ADD_FAILURE() << action << " is not on rank " << rank;
  return timeline.ranks[0][0];
}

void expect_span(const Timeline& timeline, int rank, const std::string& action, double begin,
                 double end) {
  const Span& span = span_of(timeline, rank, action);
  EXPECT_EQ(span.begin, begin) << action;
  EXPECT_EQ(span.end, end) << action;
}

// 0F0 | 0F1 | ....... | 0B0 | 0B1
//     | 1F0 | 1B0 | 1F1 | 1B1
TEST(Price, PlaysAsFastAsTheOrderAllows) {
  const Timeline timeline = price(make("1f1b", {2, 2}), {{.forward = 1, .backward = 3}});
  expect_span(timeline, 0, "0F1", 1, 2);
  expect_span(timeline, 1, "1F0", 1, 2);
  expect_span(timeline, 1, "1B0", 2, 5);
  expect_span(timeline, 0, "0B0", 5, 8);
  expect_span(timeline, 1, "1B1", 6, 9);
  expect_span(timeline, 0, "0B1", 9, 12);
  EXPECT_EQ(timeline.end(), 12);
  EXPECT_EQ(timeline.busy(0), 8);
  EXPECT_NEAR(timeline.bubble(), 1.0 / 3, 1e-12);
}

TEST(Price, EachStageMayHaveTimesOfItsOwn) {
  const Timeline timeline =
      price(make("gpipe", {2, 1}), {{.forward = 1, .backward = 2}, {.forward = 5, .backward = 7}});
  expect_span(timeline, 1, "1F0", 1, 6);
  expect_span(timeline, 1, "1B0", 6, 13);
  expect_span(timeline, 0, "0B0", 13, 15);
  EXPECT_THAT(test::sentence_of<MisuseError>([] {
                price(make("gpipe", {2, 1}), {{}, {}, {}});
              }),
              HasSubstr("3 stages for a schedule of 2"));
}

TEST(Price, ATransferHoldsUpOnlyWhoWaitsForIt) {
  const StageTimes times{.forward = 1, .backward = 2, .transfer = 0.5};
  const Schedule plain = make("1f1b", {2, 2});
  for (const Schedule& schedule : {plain, with_transfers(plain)}) {
    const Timeline timeline = price(schedule, {times});
    expect_span(timeline, 0, "0F1", 1, 2);
    expect_span(timeline, 1, "1F0", 1.5, 2.5);
    expect_span(timeline, 0, "0B0", 5, 7);
  }
  const Timeline timeline = price(with_transfers(plain), {times});
  expect_span(timeline, 0, "0SEND_F0", 1, 1.5);
  expect_span(timeline, 1, "1RECV_F0", 1, 1.5);
  expect_span(timeline, 1, "1SEND_B0", 4.5, 5);
  EXPECT_EQ(timeline.busy(0), 6) << "transfers are not computation";
}

TEST(Price, StagesOnOneRankNeedNoTransfer) {
  const Timeline timeline = price(make("zb-v", {1, 1}), {{.transfer = 100}});
  EXPECT_EQ(timeline.end(), 6);
}

TEST(Price, APairTakesAsLongAsItsPartsAndGivesAtItsEnd) {
  // The second stage gets 0F1 when the pair has ended, not when its half has.
  const Schedule schedule = parse_csv("mine", "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n");
  const Timeline timeline = price(schedule, {{.forward = 1, .backward = 2}});
  expect_span(timeline, 0, "0F1", 4, 5);
  expect_span(timeline, 0, "0B0", 5, 7);
  expect_span(timeline, 1, "1F1", 7, 8);
}

TEST(Price, ActsOfAWholeStageTakeNoTime) {
  const Schedule plain = make("interleaved", {2, 4, 2});
  EXPECT_EQ(price(with_reduces(with_unshards(plain)), {{}}).end(), price(plain, {{}}).end());
  const Timeline timeline = price(make("pipedream", {1, 1}), {{}});
  expect_span(timeline, 0, "0UPDATE", 3, 3);
}

TEST(Price, RefusesWhatVerifyRefuses) {
  EXPECT_THAT(test::sentence_of<ScheduleError>([] { price(parse_csv("mine", "0B0,0F0\n"), {{}}); }),
              HasSubstr("can never do 0B0"));
}

}  // namespace
}  // namespace trireme::pipeline
