// What `verify` says: the action, the rank, the step, and what it waits for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/sentence.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The sentence about a schedule that is written as text.
std::string says(const std::string& text) {
  return test::sentence_of<ScheduleError>([&] { verify(parse_csv("mine", text)); });
}

void accepts(const std::string& text) {
  EXPECT_NO_THROW(verify(parse_csv("mine", text))) << text;
}

TEST(Verify, AcceptsWhatCanRun) {
  accepts("0F0,0B0\n");
  accepts("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  accepts("0F0,0I0,0W0\n1F0,1I0,1W0\n");
  accepts("0F0,0I0,0W0\n1F0,1B0\n");  // halves here, whole there
  accepts("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  accepts("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n");
  accepts("0F0,0B0,0UPDATE,0F1,0B1,0UPDATE\n");
}

TEST(Verify, NamesTheCircleOfADeadlock) {
  // Each rank wants the other's gradient or activation first.
  const std::string sentence = says("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(sentence,
            "schedule 'mine': rank 0 can never do 0B0, its step 2, which waits for 1B0, step 3 of "
            "rank 1; rank 1 can never do 1F1, its step 2, which waits for 0F1, step 3 of rank 0");
}

TEST(Verify, NamesWhatComesTooLateOnTheSameRank) {
  EXPECT_EQ(says("0B0,0F0\n"),
            "schedule 'mine': rank 0 can never do 0B0, its step 1, which waits for 0F0, step 2 of "
            "rank 0");
  EXPECT_THAT(says("0F0,0W0,0I0\n"),
              HasSubstr("can never do 0W0, its step 2, which waits for 0I0"));
  EXPECT_THAT(says("0F0,0RECV_B0,0B0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("rank 0 can never do 0RECV_B0, its step 2, which waits for 1SEND_B0"));
}

TEST(Verify, APairBeginsTogether) {
  accepts("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  EXPECT_THAT(says("(0F0;0B0)OVERLAP_F_B\n"),
              HasSubstr("rank 0 can never do 0B0, its step 2, which waits for 0F0, step 1"));
  EXPECT_THAT(says("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n"),
              AllOf(HasSubstr("0B0"), HasSubstr("one forward and then one backward")));
  EXPECT_THAT(says("(0F0;0F1)OVERLAP_F_B,0B0,0B1\n"),
              HasSubstr("0F0 at step 1 overlapped with 0F1"));
  Schedule schedule = make("gpipe", {1, 1});
  schedule.programs[0].back().join = Join::WithNext;
  EXPECT_THAT(test::sentence_of<ScheduleError>([&] { verify(schedule); }),
              HasSubstr("but there is none"));
}

TEST(Verify, WorkIsDoneOnce) {
  EXPECT_EQ(says("0F0,0F1,0B0\n"),
            "schedule 'mine': rank 0 never does 0B1 (nor its halves, 0I1 and 0W1)");
  EXPECT_EQ(says("0F0,0B0,0B1\n"), "schedule 'mine': rank 0 never does 0F1");
  EXPECT_EQ(says("0F0,0B0,0F0\n"), "schedule 'mine': rank 0 does 0F0 twice, at steps 1 and 3");
  EXPECT_EQ(says("0F0,0I0\n"), "schedule 'mine': rank 0 does 0I0 at step 2, but never 0W0");
  EXPECT_EQ(says("0F0,0W0\n"), "schedule 'mine': rank 0 does 0W0 at step 2, but never 0I0");
  EXPECT_THAT(says("0F0,0B0,0I0,0W0\n"),
              AllOf(HasSubstr("does 0B0 at step 2, and 0I0 too"), HasSubstr("not both")));
}

TEST(Verify, StagesAndMicroBatchesExistAndLieWhereTheyAre) {
  const auto broken = [](const std::function<void(Schedule&)>& change) {
    Schedule schedule = make("1f1b", {2, 2});
    change(schedule);
    return test::sentence_of<ScheduleError>([&] { verify(schedule); });
  };
  EXPECT_THAT(broken([](Schedule& s) { s.programs[1][0].stage = 2; }),
              HasSubstr("rank 1 does 2F0 at step 1, but there are 2 stages"));
  EXPECT_THAT(broken([](Schedule& s) { s.programs[1][0].micro = 2; }),
              HasSubstr("rank 1 does 1F2 at step 1, but there are 2 micro-batches"));
  EXPECT_THAT(broken([](Schedule& s) { s.programs[1][0].micro = kNoMicro; }), HasSubstr("1F"));
  EXPECT_THAT(broken([](Schedule& s) { s.programs[1][0].stage = 0; }),
              HasSubstr("rank 1 does 0F0 at step 1, but stage 0 is on rank 0"));
  EXPECT_THAT(broken([](Schedule& s) { s.placement[1] = 2; }), HasSubstr("rank 2"));
  EXPECT_THAT(broken([](Schedule& s) { s.placement[1] = 0; }), HasSubstr("rank 1 holds no stage"));
  EXPECT_THAT(broken([](Schedule& s) { s.micros = 1 << 30; }), HasSubstr("most of the work"));
  EXPECT_THAT(broken([](Schedule& s) { s.micros = 0; }), HasSubstr("0 micro-batches"));
  EXPECT_THAT(broken([](Schedule& s) { s = {}; }), HasSubstr("0 ranks"));
  EXPECT_THAT(broken([](Schedule& s) {
                s.programs[0].push_back({0, Act::ReduceGrad, 1});
              }),
              HasSubstr("leave out the micro-batch"));
}

TEST(Verify, EveryTransferHasTwoEnds) {
  EXPECT_EQ(says("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "schedule 'mine': rank 0 never does 0SEND_F0, for which rank 1 waits in 1RECV_F0, its "
            "step 1");
  EXPECT_THAT(says("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
              HasSubstr("rank 1 never does 1RECV_F0, for which rank 1 waits in 1F0, its step 1"));
  EXPECT_THAT(says("0F0,0SEND_F0,0I0,0W0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("rank 0 never does 0RECV_B0, for which rank 0 waits in 0I0"));
  EXPECT_THAT(says("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n"),
              HasSubstr("rank 1 never does 1SEND_B0"));
  EXPECT_THAT(says("0F0,0SEND_B0,0B0\n"), HasSubstr("stage 0 is the first"));
  EXPECT_THAT(says("0F0,0SEND_F0,0B0\n"), HasSubstr("stage 0 is the last"));
  EXPECT_THAT(says("0F0,0SEND_F0,1F0,1B0,0B0\n"),
              HasSubstr("rank 0 does 0SEND_F0 at step 2, but stage 1 is on the same rank"));
}

TEST(Verify, WholeStageActsComeInOrder) {
  EXPECT_THAT(says("0F0,0UNSHARD,0B0\n"),
              HasSubstr("rank 0 does 0F0 at step 1, but 0UNSHARD has not been done"));
  EXPECT_THAT(
      says("0UNSHARD,0F0,0RESHARD,0B0\n"),
      HasSubstr("rank 0 does 0B0 at step 4, but 0RESHARD at step 3 has released the weights"));
  EXPECT_THAT(says("0UNSHARD,0UNSHARD,0F0,0B0\n"), HasSubstr("unsharded already"));
  EXPECT_THAT(says("0RESHARD,0F0,0B0\n"), HasSubstr("0UNSHARD has not been done"));
  EXPECT_THAT(says("0F0,0REDUCE_GRAD,0B0\n"), HasSubstr("no new gradient before 0B0, its step 3"));
  EXPECT_THAT(says("0F0,0B0,0REDUCE_GRAD,0F1,0B1\n"), HasSubstr("would never be reduced"));
  EXPECT_THAT(says("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"), HasSubstr("done at step 3 already"));
  EXPECT_THAT(says("0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n"),
              HasSubstr("rank 1 never does 1REDUCE_GRAD after 1B0"));
  EXPECT_THAT(says("0F0,0B0,0UPDATE,0F1,0B1\n"), HasSubstr("never does 0UPDATE after 0B1"));
  EXPECT_THAT(says("0UPDATE,0F0,0B0\n"), HasSubstr("no new gradient before 0B0"));
  EXPECT_THAT(says("0F0,0B0,0UPDATE,0F1,0B1,0REDUCE_GRAD,0UPDATE\n"),
              HasSubstr("0UPDATE at step 3, but 0REDUCE_GRAD has not been done"));
}

TEST(Verify, ALongCircleIsNotToldInFull) {
  // Rank 0 begins with its second stage, which waits for rank 11, and so on back to its first.
  Schedule schedule = make("looped-bfs", {12, 1, 2});
  std::swap(schedule.programs[0][0], schedule.programs[0][1]);
  EXPECT_THAT(test::sentence_of<ScheduleError>([&] { verify(schedule); }),
              HasSubstr("and so on, in a cycle of 12 ranks"));
}

TEST(WithTransfers, PutsReceivesBeforeAndSendsAfter) {
  EXPECT_EQ(to_csv(with_transfers(make("1f1b", {2, 2}))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const std::string pairs = to_csv(with_transfers(make("dualpipe-v", {2, 4})));
  EXPECT_THAT(pairs, HasSubstr(",3RECV_F2,0RECV_B0,(3F2;0B0)OVERLAP_F_B,3B2,"));
  EXPECT_THAT(pairs, HasSubstr(",(2F2;1B0)OVERLAP_F_B,2SEND_F2,1SEND_B0,"));
  EXPECT_THAT(pairs, HasSubstr(",1F2,2RECV_B0,")) << "1 and 2 lie on one rank";
}

TEST(WithUnshardsAndReduces, StandAroundTheUseOfAStage) {
  EXPECT_EQ(to_csv(with_reduces(with_unshards(with_transfers(make("looped-bfs", {2, 1, 2}))))),
            "0UNSHARD,0F0,0SEND_F0,2UNSHARD,2RECV_F0,2F0,2SEND_F0,"
            "2RECV_B0,2B0,2SEND_B0,2REDUCE_GRAD,2RESHARD,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1SEND_F0,3UNSHARD,3RECV_F0,3F0,3B0,3SEND_B0,3REDUCE_GRAD,"
            "3RESHARD,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
  EXPECT_EQ(to_csv(with_reduces(make("pipedream", {1, 2}))),
            "0F0,0B0,0REDUCE_GRAD,0UPDATE,0F1,0B1,0REDUCE_GRAD,0UPDATE\n");
}

TEST(Verify, IsQuickForLargeSchedules) {
  const auto began = std::chrono::steady_clock::now();
  verify(make("interleaved", {64, 512, 4}));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2));
}

}  // namespace
}  // namespace trireme::pipeline
