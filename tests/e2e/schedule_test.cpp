// `trireme schedule` as people run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

#include "support/command.h"
#include "support/scratch.h"

namespace trireme {
namespace {

using test::CommandResult;
using test::Scratch;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult run(std::vector<std::string> args, test::CommandOptions options = {}) {
  args.insert(args.begin(), {TRIREME_BINARY_DIR "/bin/trireme", "schedule"});
  return test::run_command(std::move(args), std::move(options));
}

std::string drawn(std::vector<std::string> args) {
  const auto result = run(std::move(args));
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out;
}

TEST(ScheduleCommand, DrawsAGridWithBubbleAndMemory) {
  EXPECT_EQ(drawn({"1f1b", "--ranks", "2", "--micros", "3"}),
            "time    0           4           8\n"
            "rank 0  F0 F1 ..... B0--- F2 B1--- .. B2---\n"
            "rank 1  .. F0 B0--- F1 B1--- F2 B2--- ......\n"
            "\n"
            "1f1b: 2 ranks, 3 micro-batches\n"
            "bubble 25.0 %; time 12 with F 1, B 2 (I 1, W 1)\n"
            "in flight at most, by rank: 2 1\n"
            "F forward, B backward, the micro-batch after it; . idle\n");
}

TEST(ScheduleCommand, TheGridUsesTheTimes) {
  const std::string grid = drawn({"zb-h1", "--ranks", "2", "--micros", "2", "--times", "1,3,2"});
  EXPECT_THAT(grid, HasSubstr("F0 F1 .. I0 W0--- I1 W1---"));
  EXPECT_THAT(grid, HasSubstr("with F 1, B 3 (I 1, W 2)"));
}

TEST(ScheduleCommand, WrapsToTheTerminalAndCutsWhatIsTooLong) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  };
  const auto narrow =
      run({"1f1b", "--ranks", "2", "--micros", "30"}, {.environment = {{"COLUMNS", "60"}}});
  for (const std::string& line : lines(narrow.out))
    EXPECT_TRUE(line.size() <= 60 || line.starts_with("F forward")) << line;
  EXPECT_THAT(narrow.out, AllOf(HasSubstr("B29"), Not(HasSubstr("cut at"))));
  const auto long_one =
      run({"1f1b", "--ranks", "2", "--micros", "900"}, {.environment = {{"COLUMNS", "60"}}});
  EXPECT_THAT(long_one.out, HasSubstr("--format svg draws all"));
  EXPECT_THAT(narrow.out, Not(HasSubstr("\x1b["))) << "colour only on a terminal";
  const auto uneven = run({"zb-h1", "--ranks", "2", "--micros", "2", "--times", "1e-9,1e9,1"});
  EXPECT_EQ(uneven.code, 0) << uneven.err;
  EXPECT_LT(uneven.out.size(), 1u << 21) << "whatever the times";
}

TEST(ScheduleCommand, ItsTextIsReadAgain) {
  const Scratch scratch;
  for (const char* name : {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v",
                           "dualpipe-v", "pipedream", "pipedream-2bw"}) {
    const std::string text = drawn({name, "--ranks", "3", "--micros", "6", "--format", "text"});
    const std::string file = scratch / name + std::string(".csv");
    test::put_bytes(file, text);
    EXPECT_EQ(drawn({file, "--format", "text"}), text);
    EXPECT_EQ(drawn({"--ranks", "3", file, "--format=text", "--micros", "6"}), text);
    EXPECT_THAT(drawn({file}), HasSubstr("bubble"));
  }
}

TEST(ScheduleCommand, JsonHasEverything) {
  const auto json = nlohmann::json::parse(
      drawn({"dualpipe-v", "--ranks", "2", "--micros", "4", "--format", "json"}));
  EXPECT_EQ(json["name"], "dualpipe-v");
  EXPECT_EQ(json["micros"], 4);
  EXPECT_EQ(json["placement"], (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(json["programs"].size(), 2u);
  EXPECT_EQ(json["programs"][0][7], "(0F3;3B1)OVERLAP_F_B");
  EXPECT_EQ(json["spans"][0][0]["action"], "0F0");
  EXPECT_EQ(json["spans"][0][1]["begin"], 1);
  EXPECT_EQ(json["peak_live"], (std::vector<int>{5, 5}));
  EXPECT_EQ(json["end"], 26);
  EXPECT_NEAR(json["bubble"].get<double>(), 2.0 / 26, 1e-9);
}

TEST(ScheduleCommand, SvgIsXmlWithABoxForEachAction) {
  const Scratch scratch;
  test::put_bytes(scratch / "<&>.csv", "0F0,0B0\n");
  for (const auto& args : std::vector<std::vector<std::string>>{
           {"zb-v", "--ranks", "3", "--micros", "5", "--format", "svg"},
           {"pipedream", "--ranks", "2", "--micros", "5", "--format", "svg"},
           {"interleaved", "--ranks", "16", "--micros", "256", "--stages-per-rank", "2", "--format",
            "svg"},
           {scratch / "<&>.csv", "--format", "svg"}}) {
    const std::string svg = drawn(args);
    EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    const auto checked = test::run_command(
        {"python3", "-c",
         "import sys, xml.dom.minidom; xml.dom.minidom.parseString(sys.stdin.read())"},
        {.input = svg});
    EXPECT_EQ(checked.code, 0) << args[0] << ": " << checked.err;
  }
  const std::string svg = drawn({"1f1b", "--ranks", "2", "--micros", "2", "--format", "svg"});
  for (const char* text :
       {"1f1b: 2 ranks, 2 micro-batches", "bubble 33.3 %", "in flight 2", "in flight 1",
        "<title>0F0, 0 to 1</title>", "<title>1B1, 5 to 7</title>", "F forward"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST(ScheduleCommand, MistakesAreSentencesAndExitTwo) {
  const Scratch scratch;
  const auto says = [](std::vector<std::string> args) {
    const auto result = run(std::move(args));
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(says({}), HasSubstr("no schedule was named"));
  EXPECT_THAT(says({"1f2b", "--ranks", "2"}),
              AllOf(HasSubstr("'1f2b' is neither"), HasSubstr("zb-h1")));
  EXPECT_THAT(says({"1f1b", "--micros", "2"}), HasSubstr("1f1b needs --ranks N"));
  EXPECT_THAT(says({"1f1b", "--ranks", "2"}), HasSubstr("1f1b needs --micros N"));
  EXPECT_THAT(says({"1f1b", "gpipe", "--ranks", "2"}), HasSubstr("unexpected 'gpipe'"));
  EXPECT_THAT(says({"1f1b", "--ranks", "0", "--micros", "2"}),
              HasSubstr("--ranks 0: write a whole number"));
  EXPECT_THAT(says({"1f1b", "--ranks", "two", "--micros", "2"}), HasSubstr("--ranks two"));
  EXPECT_THAT(says({"1f1b", "--ranks", "2", "--micros", "2", "--stages-per-rank", "2"}),
              HasSubstr("not 2"));
  EXPECT_THAT(says({"dualpipe-v", "--ranks", "4", "--micros", "4"}),
              HasSubstr("at least 8 micro-batches"));
  EXPECT_THAT(says({"1f1b", "--ranks", "2", "--micros", "2", "--format", "png"}),
              HasSubstr("grid, text, json or svg"));
  for (const char* times :
       {"1", "1,2", "1,2,3", "1,2,2", "1,2,1,", "a,b,c", "1,-2,1", "0,2,1", "1,inf,1", "1,nan,1"})
    EXPECT_THAT(says({"1f1b", "--ranks", "2", "--micros", "2", "--times", times}),
                HasSubstr("as in 1,2,1"));
  EXPECT_THAT(says({"1f1b", "--rnks", "2"}), HasSubstr("unknown option --rnks"));
  test::put_bytes(scratch / "a.csv", "0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(says({scratch / "a.csv", "--ranks", "3"}), HasSubstr("--ranks 3, but"));
  EXPECT_THAT(says({scratch / "a.csv", "--micros", "3"}), HasSubstr("--micros 3, but"));
  EXPECT_THAT(says({scratch / "a.csv", "--stages-per-rank", "2"}),
              HasSubstr("has 2 stages on 2 ranks"));
  test::put_bytes(scratch / "b.csv", "0F0,0B0\n1B0,1F0\n");
  EXPECT_THAT(says({scratch / "b.csv"}), HasSubstr("rank 1 can never do 1B0, its step 1"));
  test::put_bytes(scratch / "c.csv", "0F0,0B0\n1F0,B0\n");
  EXPECT_THAT(says({scratch / "c.csv"}), HasSubstr("row 2, column 2"));
  EXPECT_THAT(says({scratch.path()}), HasSubstr("cannot be read"));
}

TEST(ScheduleCommand, StepsThatDoNotDrainHaveAPeriodDelaysAndVersions) {
  const auto json =
      nlohmann::json::parse(drawn({"pipedream-2bw", "--ranks", "2", "--micros", "4", "--steps", "3",
                                   "--times", "1,2,1,0.5/1,3,1,0.5", "--format", "json"}));
  EXPECT_EQ(json["micros"], 12);
  EXPECT_EQ(json["steps"], 3);
  EXPECT_EQ(json["period"], 16.5) << "four forwards and backwards of the slower stage, an update";
  EXPECT_EQ(json["delays"], (std::vector<int>{1, 1}));
  EXPECT_EQ(json["versions"], (std::vector<int>{2, 2}));
  EXPECT_THAT(drawn({"pipedream", "--ranks", "3", "--micros", "1", "--steps", "6"}),
              AllOf(HasSubstr("3 a step in a full pipe"), HasSubstr("delays 2 1 0"),
                    HasSubstr("by rank: 3 2 1")));
  EXPECT_THAT(
      drawn({"pipedream", "--ranks", "3", "--micros", "1", "--steps", "6", "--vertical-sync"}),
      HasSubstr("by rank: 3 3 3"));
  const auto says = [](const std::vector<std::string>& args) {
    const auto result = run(args);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_THAT(says({"pipedream-2bw", "--ranks", "3", "--micros", "2", "--steps", "2"}),
              HasSubstr("at least 3"));
  EXPECT_THAT(says({"1f1b", "--ranks", "3", "--micros", "2", "--steps", "2"}),
              HasSubstr("drains the pipe"));
  EXPECT_THAT(says({"pipedream", "--ranks", "2", "--micros", "2000000000", "--steps", "2"}),
              HasSubstr("more than the limit"));
  EXPECT_THAT(says({"pipedream", "--ranks", "2", "--micros", "2", "--vertical-sync"}),
              HasSubstr("--steps"));
}

TEST(ScheduleCommand, InterleavedHasTwoStagesPerRankUnlessItIsTold) {
  EXPECT_EQ(drawn({"interleaved", "--ranks", "2", "--micros", "4"}),
            drawn({"interleaved", "--ranks", "2", "--micros", "4", "--stages-per-rank", "2"}));
}

TEST(ScheduleCommand, HelpListsTheSchedules) {
  for (const auto& args : {std::vector<std::string>{"--help"}, {"1f1b", "--help"}}) {
    const std::string help = drawn(args);
    for (const char* text :
         {"dualpipe-v ", "pipedream-2bw ", "--stages-per-rank", "--times", "mine.csv"})
      EXPECT_THAT(help, HasSubstr(text));
  }
}

}  // namespace
}  // namespace trireme
