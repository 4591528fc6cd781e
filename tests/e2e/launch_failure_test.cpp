// How a job ends when something goes wrong: the right code, the right words, and nobody left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>

#include "support/command.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using test::Command;
using test::CommandOptions;
using test::CommandResult;
using test::eventually;
using test::kTrireme;
using ::testing::HasSubstr;
using ::testing::Not;

/// A job whose every process carries a mark, so that one can look for those that are left.
class LaunchFailure : public ::testing::Test {
 protected:
  const std::string marker_ = test::unique_marker();
  /// A file name for the ranks to leave each other word.
  const std::string scratch_ = std::filesystem::temp_directory_path() / ("launch-" + marker_);

  void TearDown() override { std::filesystem::remove(scratch_); }

  std::vector<std::string> words(std::vector<std::string> options, const std::string& script) {
    options.insert(options.begin(), {kTrireme, "run"});
    options.insert(options.end(), {"sh", "-c", script});
    return options;
  }
  CommandOptions how() {
    return {.environment = {{"LAUNCH_MARKER", marker_}, {"SCRATCH", scratch_}}, .deadline = 20s};
  }
  CommandResult run(std::vector<std::string> options, const std::string& script) {
    return test::run_command(words(std::move(options), script), how());
  }
  size_t num_left() { return test::processes_with("LAUNCH_MARKER", marker_).size(); }
  void expect_nobody_left() {
    EXPECT_TRUE(eventually([&] { return num_left() == 0; }, 500ms)) << num_left() << " are left";
  }
};

TEST_F(LaunchFailure, PassesOnTheCodeAndShowsTheLastLines) {
  const auto result =
      run({"-n", "3"}, "[ $RANK = 1 ] || exec sleep 60; seq 100; echo the reason >&2; exit 7");
  EXPECT_EQ(result.code, 7);
  EXPECT_LT(result.wall, 5s);
  EXPECT_THAT(result.err, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("exited with code 7"));
  EXPECT_THAT(result.err, HasSubstr("\n  | the reason\n"));
  EXPECT_THAT(result.err, HasSubstr("\n  | 100\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("\n  | 50\n")));
  expect_nobody_left();
}

TEST_F(LaunchFailure, NamesTheSignalThatKilledARank) {
  const auto result = run({"-n", "2"}, "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60");
  EXPECT_EQ(result.code, 128 + SIGSEGV);
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
  EXPECT_THAT(result.err, HasSubstr("SIGSEGV"));
  expect_nobody_left();
}

TEST_F(LaunchFailure, ReportsTheFirstAndNotTheOnesThatFollow) {
  // Rank 0 speaks up only after it saw the end of rank 1, within the time that it is given.
  const auto result = run({"-n", "2"},
                          "[ $RANK = 1 ] && { echo $$ > $SCRATCH.new; mv $SCRATCH.new $SCRATCH; "
                          "exit 5; }; until [ -e $SCRATCH ]; do sleep 0.01; done; "
                          "until grep -q 'State:.Z' /proc/$(cat $SCRATCH)/status; do :; done; "
                          "echo rank 1 is gone >&2; exit 9");
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, HasSubstr("[0] rank 1 is gone"));
  EXPECT_THAT(result.err, HasSubstr("rank 1 (pid "));
}

TEST_F(LaunchFailure, KillsRanksThatIgnoreTerm) {
  const auto result =
      run({"-n", "2"}, "trap '' TERM; [ $RANK = 0 ] && exit 4; while :; do sleep 1; done");
  EXPECT_EQ(result.code, 4);
  EXPECT_LT(result.wall, 10s);
  expect_nobody_left();
}

TEST_F(LaunchFailure, StopsRanksThatAreThemselvesStopped) {
  const auto result = run({"-n", "2"}, "[ $RANK = 0 ] && { sleep 0.1; exit 4; }; kill -STOP $$");
  EXPECT_EQ(result.code, 4);
  EXPECT_LT(result.wall, 4s);
}

TEST_F(LaunchFailure, ARankMayReturnEarly) {
  const auto result = run({"-n", "2"}, "[ $RANK = 0 ] || { sleep 0.5; echo late; }");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[1] late\n");
}

TEST_F(LaunchFailure, EndsTheChildrenThatRanksLeaveBehind) {
  EXPECT_EQ(run({"-n", "2"}, "sleep 60 & sleep 61 & exit 0").code, 0);
  expect_nobody_left();
}

TEST_F(LaunchFailure, SaysWhyAProgramCannotBeStarted) {
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"./no-such-program", 127, "cannot start './no-such-program': No such file or directory"},
      {"no-such-program", 127,
       "cannot start 'no-such-program': No such file or directory; it is not on PATH"},
      {"/etc/passwd", 126, "cannot start '/etc/passwd': Permission denied"},
      {"/", 126, "cannot start '/': Is a directory"}};
  for (const auto& [program, code, sentence] : cases) {
    const auto result = test::run_command({kTrireme, "run", "-n", "3", program}, how());
    EXPECT_EQ(result.code, code);
    EXPECT_EQ(result.err, "trireme run: " + sentence + "\n");
  }
  expect_nobody_left();
}

TEST_F(LaunchFailure, RestartsAndCountsUp) {
  const auto result = run({"-n", "2", "--max-restarts", "2"},
                          "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                          "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3");
  EXPECT_EQ(result.code, 0);
  for (const char* line : {"[0] try 0 of 2\n", "[1] try 1 of 2\n", "[0] try 2 of 2\n"})
    EXPECT_THAT(result.out, HasSubstr(line));
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 2"));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
}

TEST_F(LaunchFailure, GivesUpAfterTheLastRestart) {
  const auto result = run({"--max-restarts", "1"}, "echo again; exit 3");
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.out, "again\nagain\n");
}

TEST_F(LaunchFailure, DoesNotTryAgainWhatWasAskedWrongly) {
  const auto result = run({"-n", "2", "--max-restarts", "3"}, "echo try; echo no >&2; exit 2");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << "each rank once";
  EXPECT_THAT(result.err, HasSubstr("exited with code 2\n")) << "it was heard when it said why";
}

TEST_F(LaunchFailure, NamesTheRankThatIsStoppedAndNotTheOneThatGaveUp) {
  const auto result =
      run({"-n", "2"},
          "if [ $RANK = 1 ]; then echo pid $$; echo $$ > $SCRATCH; kill -STOP $$; fi; "
          "until grep -q stopped /proc/$(cat $SCRATCH)/status; do :; done 2>/dev/null; "
          "exit 1");
  EXPECT_EQ(result.code, 1);
  std::smatch pid;
  ASSERT_TRUE(std::regex_search(result.out, pid, std::regex("\\[1\\] pid ([0-9]+)")));
  EXPECT_THAT(result.err, HasSubstr("trireme run: rank 1 (pid " + pid[1].str() + " on "));
  EXPECT_THAT(result.err, HasSubstr("is stopped, by SIGSTOP or a debugger; rank 0 (pid "));
}

TEST_F(LaunchFailure, SaysHowToNameAProgramOfThisFolder) {
  const auto result = test::run_command(
      {"bash", "-c",
       "cd " TRIREME_BINARY_DIR "/bin && PATH=/usr/bin:/bin ./trireme run trireme-rank"},
      how());
  EXPECT_EQ(result.code, 127);
  EXPECT_EQ(
      result.err,
      "trireme run: cannot start 'trireme-rank': No such file or directory; the one in this folder "
      "is ./trireme-rank\n");
}

TEST_F(LaunchFailure, LeavesNobodyWhenTheLauncherIsKilled) {
  Command launcher(words({"-n", "3"}, "sleep 60 & sh -c 'sleep 60; :' & echo ready; wait"), how());
  ASSERT_TRUE(launcher.wait_for("[0] ready"));
  ASSERT_TRUE(launcher.wait_for("[1] ready"));
  ASSERT_TRUE(launcher.wait_for("[2] ready"));
  EXPECT_GE(num_left(), 1u + 1u + 3u * 3u);  // launcher, keeper, ranks with their children
  launcher.signal(SIGKILL);
  EXPECT_EQ(launcher.finish().code, 128 + SIGKILL);
  expect_nobody_left();
}

TEST_F(LaunchFailure, LeavesNobodyWhenTheLauncherIsKilledAtOnce) {
  for (int i = 0; i < 20; ++i) {
    Command launcher(words({"-n", "4"}, "sleep 60 & wait"), how());
    eventually([&] { return num_left() > static_cast<size_t>(i % 6); });
    launcher.signal(SIGKILL);
    launcher.finish();
    expect_nobody_left();
  }
}

TEST_F(LaunchFailure, PassesSignalsOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Command launcher(words({"-n", "2"},
                           "trap 'echo heard; exit 0' INT TERM HUP; echo ready; "
                           "while :; do sleep 0.05; done"),
                     how());
    ASSERT_TRUE(launcher.wait_for("[0] ready"));
    ASSERT_TRUE(launcher.wait_for("[1] ready"));
    launcher.signal(signal);
    const auto result = launcher.finish();
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("[0] heard"));
    EXPECT_THAT(result.out, HasSubstr("[1] heard"));
  }
}

TEST_F(LaunchFailure, EndsAsItsRanksDoWhenTerminated) {
  Command launcher(words({"-n", "2"}, "echo ready; exec sleep 60"), how());
  ASSERT_TRUE(launcher.wait_for("[0] ready"));
  launcher.signal(SIGTERM);
  const auto result = launcher.finish();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_EQ(result.err, "");
  expect_nobody_left();
}

TEST_F(LaunchFailure, KillsAtTheSecondSignal) {
  Command launcher(words({"-n", "2"},
                         "trap 'echo heard' INT; echo ready; "
                         "while :; do sleep 0.05; done"),
                   how());
  ASSERT_TRUE(launcher.wait_for("[0] ready"));
  ASSERT_TRUE(launcher.wait_for("[1] ready"));
  launcher.signal(SIGINT);
  ASSERT_TRUE(launcher.wait_for("heard"));
  launcher.signal(SIGINT);
  const auto result = launcher.finish();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_LT(result.wall, 5s);
  expect_nobody_left();
}

TEST_F(LaunchFailure, DoesNotRestartWhatWasInterrupted) {
  Command launcher(words({"-n", "2", "--max-restarts", "5"}, "echo ready; exec sleep 60"), how());
  ASSERT_TRUE(launcher.wait_for("[0] ready"));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish().code, 128 + SIGTERM);
}

TEST_F(LaunchFailure, GivesAPauseToTheRanksToo) {
  Command launcher(words({"-n", "2"},
                         "echo ready; until [ -e $SCRATCH ]; do sleep 0.05; done; "
                         "echo done"),
                   how());
  ASSERT_TRUE(launcher.wait_for("[0] ready"));
  ASSERT_TRUE(launcher.wait_for("[1] ready"));
  const auto num_stopped = [&] {
    size_t stopped = 0;
    for (const pid_t pid : test::processes_with("LAUNCH_MARKER", marker_)) {
      const auto stat = test::run_command({"cat", "/proc/" + std::to_string(pid) + "/stat"}).out;
      stopped += stat.find(") T ") != stat.npos ? 1 : 0;
    }
    return stopped;
  };
  launcher.signal(SIGTSTP);
  EXPECT_TRUE(eventually([&] { return num_stopped() >= 3; }));
  std::ofstream(scratch_) << "go on";
  launcher.signal(SIGCONT);
  const auto result = launcher.finish();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("[0] done"));
}

TEST_F(LaunchFailure, SaysThatALogCannotBeWritten) {
  const auto result = run({"-n", "2", "--log-dir", "/proc/no"}, "true");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("/proc/no"));
}

}  // namespace
}  // namespace trireme
