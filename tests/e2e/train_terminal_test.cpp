// `trireme train` as a person sees it: on a terminal, through a pipe that ends, under mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/terminal.h"
#include "support/training.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

bool is_bar(const std::string& line) {
  return line.starts_with("[") && line.find(" left") != line.npos;
}

TEST(OnATerminal, LinesStayAboveTheBar) {
  const Scratch folder;
  Terminal terminal(train_arguments(tiny_config(folder), folder / "run",
                                    {"run.steps=60", "log.every=20", "eval.every=30"}));
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes();
  const auto screen = terminal.screen();
  EXPECT_THAT(screen, Contains(StartsWith("step 20/60  loss ")));
  EXPECT_THAT(screen, Contains(AllOf(StartsWith("step 30/60  loss "), HasSubstr("  eval "))));
  EXPECT_THAT(screen, Contains(AllOf(StartsWith("step 60/60  loss "), HasSubstr("  eval "))));
  EXPECT_THAT(screen, Contains(StartsWith("done at step 60")));
  EXPECT_TRUE(std::ranges::none_of(screen, is_bar)) << "no bar is left of a run that is over";
  EXPECT_THAT(terminal.bytes(), HasSubstr("] ")) << "but there was one";
}

TEST(OnATerminal, TheBarShrinksFirst) {
  const Scratch folder;
  for (const int columns : {30, 50, 100}) {
    Terminal terminal(
        train_arguments(tiny_config(folder), folder / ("run" + std::to_string(columns)),
                        {"run.steps=100000", "log.every=1000000", "mesh.replica=1"}),
        {.columns = columns});
    ASSERT_TRUE(terminal.wait_for("/100000  loss "));
    terminal.type("\x03");
    EXPECT_EQ(terminal.finish(), 0);
    std::size_t bars = 0;
    std::string bytes = terminal.bytes();
    for (std::size_t at = 0; (at = bytes.find("\r\033[K", at)) != bytes.npos; at += 4) {
      const std::string drawn = bytes.substr(at + 4, bytes.find_first_of("\r\n^", at + 4) - at - 4);
      if (drawn.find("/100000  loss ") == drawn.npos) continue;
      ++bars;
      EXPECT_LT(drawn.size(), static_cast<std::size_t>(columns)) << drawn;
      EXPECT_EQ(drawn.starts_with("["), columns >= 100) << drawn;
      EXPECT_EQ(drawn.ends_with(" left"), columns >= 50) << drawn;
    }
    EXPECT_GT(bars, 0u);
  }
}

TEST(OnATerminal, WarningsAreColouredUnlessNoColorSaysOtherwise) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  for (const bool colour : {true, false}) {
    Terminal terminal(
        train_arguments(config, folder / (colour ? "a" : "b"), {"run.steps=2", "data.samples=4"}),
        {.environment = {{"NO_COLOR", colour ? "" : "1"}}});
    EXPECT_EQ(terminal.finish(), 0) << terminal.bytes();
    EXPECT_THAT(terminal.screen(),
                Contains(AllOf(HasSubstr("warning"),
                               HasSubstr("4 samples of model.seq = 16, fewer than batch.global"))));
    EXPECT_EQ(terminal.bytes().find("\033[33m") != std::string::npos, colour) << terminal.bytes();
  }
}

TEST(OnATerminal, ErrorsAreColoured) {
  Terminal terminal({kTrireme, "train", "/nowhere.toml"});
  EXPECT_EQ(terminal.finish(), 2);
  EXPECT_THAT(terminal.bytes(), HasSubstr("\033[31mtrireme train:\033[0m /nowhere.toml"));
}

TEST(OnATerminal, BenchTellsHowFarItIs) {
  const Scratch folder;
  auto command =
      train_arguments(tiny_config(folder), folder / "run", {"run.steps=2000", "mesh.replica=1"});
  command.insert(command.begin() + 1, "bench");
  Terminal terminal(command);
  EXPECT_TRUE(terminal.wait_for(" of 2000, ")) << terminal.bytes();
}

TEST(ThroughAPipe, AReaderThatGoesStopsTheRunWhichIsSaved) {
  const Scratch folder;
  const std::string dir = folder / "run";
  std::string command;
  for (const std::string& word : train_arguments(
           tiny_config(folder), dir, {"run.steps=100000", "log.every=1", "checkpoint.every=0"}))
    command += "'" + word + "' ";
  const auto result = run_command({"bash", "-c", command + "| head -3; exit ${PIPESTATUS[0]}"},
                                  {.deadline = std::chrono::seconds(60)});
  EXPECT_EQ(result.code, 128 + SIGPIPE) << result.err;
  EXPECT_EQ(result.err, "") << "that was no failure";
  EXPECT_EQ(run_command({kTrireme, "ckpt", "verify", dir}).code, 0);
  const auto steps = texts_of(dir, "loss").size();
  const auto more = run_command(train_arguments(
      folder / "tiny.toml", dir, {"run.steps=" + std::to_string(steps + 2), "log.every=1"}));
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.out, HasSubstr("continues from"));
}

bool has_mpirun() {
  return run_command({"sh", "-c", "command -v mpirun"}).code == 0;
}

TEST(UnderMpirun, ThereAreLinesAndNoBar) {
  if (!has_mpirun()) GTEST_SKIP() << "there is no mpirun here";
  const Scratch folder;
  std::vector<std::string> command = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                                      "2"};
  const auto train = train_arguments(tiny_config(folder), folder / "run", {"log.every=5"});
  command.insert(command.end(), train.begin(), train.end());
  Terminal terminal(command, {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}});
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes();
  EXPECT_THAT(terminal.screen(), Contains(StartsWith("step 15/20  loss ")));
  EXPECT_THAT(terminal.bytes(), Not(HasSubstr("\033[K")));
}

}  // namespace
}  // namespace trireme::test
