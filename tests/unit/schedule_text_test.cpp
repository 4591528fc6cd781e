// Schedules as PyTorch's CSV.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.h"
#include "support/sentence.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/text.h"

namespace trireme::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string not_read(const std::string& text) {
  return test::sentence_of<ScheduleError>([&] { parse_csv("mine", text); });
}

TEST(ScheduleText, IsARowPerRankAndACellPerAction) {
  EXPECT_EQ(to_csv(make("1f1b", {2, 2})), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(to_csv(make("pipedream", {1, 1})), "0F0,0B0,0UPDATE\n");
  EXPECT_EQ(to_text({3, Act::SendGrad, 12}), "3SEND_B12");
  EXPECT_EQ(to_text({3, Act::Unshard}), "3UNSHARD");
}

TEST(ScheduleText, EveryActComesBack) {
  for (int act = 0; act < kNumActs; ++act) {
    const Action action{0, static_cast<Act>(act), has_micro(static_cast<Act>(act)) ? 1 : kNoMicro};
    const std::string text = "0F0,0F1,0B0,0B1," + to_text(action) + "\n";
    const Schedule schedule = parse_csv("mine", text);
    EXPECT_EQ(schedule.programs[0].back(), action) << text;
    EXPECT_EQ(to_csv(schedule), text);
  }
}

TEST(ScheduleText, PlacementAndMicroBatchesFollow) {
  const Schedule schedule = parse_csv("v", "0F0,3F0,3B0,0B0,0F1,0B1\n1F0,2F0,2B0,1B0\n");
  EXPECT_THAT(schedule.placement, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(schedule.micros, 2);
  EXPECT_EQ(schedule.ranks(), 2);
  EXPECT_EQ(schedule.name, "v");
}

TEST(ScheduleText, PairsAreOneCell) {
  const Schedule schedule = parse_csv("mine", "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  ASSERT_EQ(schedule.programs[0].size(), 4u);
  EXPECT_EQ(schedule.programs[0][1], (Action{0, Act::Forward, 1, Join::WithNext}));
  EXPECT_EQ(schedule.programs[0][2], (Action{0, Act::Backward, 0, Join::Alone}));
  EXPECT_THAT(to_cells(schedule.programs[0]), ElementsAre("0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"));
}

// All of this is written by PyTorch, by a spreadsheet or by a hand.
TEST(ScheduleText, IsReadHoweverItIsSpaced) {
  const Schedule plain = parse_csv("mine", "0F0,0B0\n1F0,1B0\n");
  for (const char* text : {
           "0F0,0B0\r\n1F0,1B0\r\n",                  // Windows, and Python's csv
           "0F0,0B0\n1F0,1B0",                        // no newline at the end
           ",,0F0,,,0B0,,\n,1F0,1B0\n",               // idle steps
           " 0F0 ,\t0B0\n1F0, 1B0  \n\n  \n\r\n",     // spaces, blank lines below
           "\"0F0\",\"0B0\"\n1F0,1B0,\n,,,\n\"\"\n",  // quotes, a comma at the end
           "\xEF\xBB\xBF"
           "0F0,0B0\n1F0,1B0\n",  // a byte order mark
       })
    EXPECT_EQ(parse_csv("mine", text), plain) << text;
  EXPECT_EQ(parse_csv("mine", "0F0,( 0F1 ; 0B0 )OVERLAP_F_B ,0B1"),
            parse_csv("mine", "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"));
}

TEST(ScheduleText, WhatIsNoScheduleIsRefusedWithItsPlace) {
  EXPECT_THAT(not_read("0F0,0B0\n1F0,1X0\n"),
              AllOf(HasSubstr("row 2, column 2"), HasSubstr("'1X0' is not an action"),
                    HasSubstr("as in 2F0")));
  for (const char* cell : {"F0",
                           "0F",
                           "0",
                           "0F0F",
                           "0F0 1",
                           "0f0",
                           "-1F0",
                           "0F-1",
                           "0UNSHARD1",
                           "0REDUCE_GRAD0",
                           "99999999999F0",
                           "0F99999999999",
                           "0OVERLAP_F_B",
                           "(0F0;0B0)",
                           "(0F0;0B0",
                           "(0F0)OVERLAP_F_B",
                           "(0F0;0B0;0F1)OVERLAP_F_B",
                           "()OVERLAP_F_B",
                           "(0F0;0B0)OVERLAP",
                           "\"0F0"})
    EXPECT_THAT(not_read("0F0,0B0," + std::string(cell) + "\n"),
                AllOf(HasSubstr("row 1, column 3"), HasSubstr(cell)));
}

TEST(ScheduleText, NumbersThatCannotBeAreRefusedBeforeMemoryIsTaken) {
  EXPECT_THAT(not_read("0F0,0B999999999\n"),
              AllOf(HasSubstr("row 1, column 2"), HasSubstr("only 2 actions")));
  EXPECT_THAT(not_read("0F0,0B0,999999999F0\n"), HasSubstr("column 3"));
  EXPECT_THAT(not_read("0F0,0B0\n2F0,2B0\n"), HasSubstr("no rank computes stage 1"));
  EXPECT_THAT(not_read("0F0,0B0,1UNSHARD\n"), HasSubstr("no rank computes stage 1"));
  EXPECT_THAT(not_read("0F0,0B0\n1F0,0B0\n"),
              AllOf(HasSubstr("row 2, column 2"), HasSubstr("rank 0 computes stage 0 already")));
}

TEST(ScheduleText, AnEmptyFileIsRefused) {
  for (const char* text : {"", "\n\n", "  \r\n", ",,\n,\n"})
    EXPECT_THAT(not_read(text), HasSubstr("a row for every rank"));
}

TEST(ScheduleText, IsReadFromAFile) {
  const test::Scratch scratch;
  const Schedule schedule = make("zb-v", {3, 5});
  test::put_bytes(scratch / "mine.csv", to_csv(schedule));
  Schedule read = read_csv(scratch / "mine.csv");
  EXPECT_EQ(read.name, scratch / "mine.csv");
  read.name = schedule.name;
  EXPECT_EQ(read, schedule);
  EXPECT_THAT(test::sentence_of<ScheduleError>([&] { read_csv(scratch / "none.csv"); }),
              AllOf(HasSubstr("none.csv"), HasSubstr("cannot be read")));
  EXPECT_THAT(test::sentence_of<ScheduleError>([&] { read_csv(scratch.path()); }),
              HasSubstr("cannot be read"));
}

TEST(ScheduleText, GarbageIsShownShortAndHarmless) {
  const std::string cell = "\x1b[31m" + std::string(3'000'000, 'x') + std::string("\0y", 2);
  try {
    parse_csv("bad", "0F0," + cell);
    ADD_FAILURE() << "it was read";
  } catch (const ScheduleError& error) {
    const std::string said = error.what();
    EXPECT_LT(said.size(), 400u);
    EXPECT_EQ(said.find('\x1b'), said.npos);
    EXPECT_NE(said.find("is not an action"), said.npos);
  }
}

}  // namespace
}  // namespace trireme::pipeline
