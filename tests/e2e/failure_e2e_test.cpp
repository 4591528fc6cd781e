// Jobs with real ranks under `trireme run` that fail: what is shown, how it ends, what is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <regex>
#include <thread>

#include "support/command.h"
#include "support/leftovers.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using test::Command;
using test::CommandResult;
using test::kTestRank;
using test::kTrireme;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FailingJob : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { left_.expect_none(); }

  /// Three ranks of the scene.
  Command start(std::vector<std::string> scene) {
    std::vector<std::string> words = {kTrireme, "run", "-n", "3", kTestRank};
    words.insert(words.end(), scene.begin(), scene.end());
    return Command(std::move(words),
                   {.environment = {{"TRIREME_BACKEND", GetParam()}}, .deadline = 30s});
  }
  CommandResult run(std::vector<std::string> scene) { return start(std::move(scene)).finish(); }

  /// The pid of a rank that has said that it is ready.
  static std::string pid_of(const CommandResult& result, int rank) {
    std::smatch found;
    const std::regex form("ready " + std::to_string(rank) + " pid ([0-9]+)");
    return std::regex_search(result.err, found, form) ? found[1].str() : "of nobody";
  }
  static std::string name_of(const CommandResult& result, int rank) {
    return "rank " + std::to_string(rank) + " (host " + host() + ", pid " + pid_of(result, rank) +
           ")";
  }
  static std::string host() {
    char name[256] = "?";
    ::gethostname(name, sizeof name - 1);
    return name;
  }
  /// What one rank said that it saw, after "rank R: ".
  static std::string seen_by(const CommandResult& result, int rank) {
    std::smatch found;
    const std::regex form("\\[" + std::to_string(rank) + "\\] saw at [0-9]+: .* on 'world', rank " +
                          std::to_string(rank) + ": (.*)");
    return std::regex_search(result.err, found, form) ? found[1].str()
                                                      : "nothing, in " + result.err;
  }
  void everybody_is_ready(Command& job) {
    for (const char* line : {"ready 0", "ready 1", "ready 2"}) ASSERT_TRUE(job.wait_for(line));
  }

  test::Leftovers left_;
};
INSTANTIATE_TEST_SUITE_P(Over, FailingJob, ::testing::Values("shm", "tcp"),
                         [](const auto& name) { return name.param; });

TEST_P(FailingJob, ShowsTheRankThatWasKilledAndWhatTheOthersSaw) {
  for (const int victim : {0, 1, 2}) {
    SCOPED_TRACE("rank " + std::to_string(victim));
    const auto result = run({"die-at", std::to_string(victim)});
    EXPECT_EQ(result.code, 128 + SIGKILL);
    EXPECT_THAT(result.err,
                HasSubstr("rank " + std::to_string(victim) + " (pid " + pid_of(result, victim)));
    EXPECT_THAT(result.err, HasSubstr("SIGKILL"));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(seen_by(result, rank), name_of(result, victim) + " died");
    }
    EXPECT_LT(result.wall, 5s);
    left_.expect_none(3s);
  }
}

TEST_P(FailingJob, ShowsAnErrorThatOneRankThrew) {
  const auto result = run({"throw-at", "1"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("[1] error: the data is not there"));
  EXPECT_THAT(result.err, HasSubstr("rank 1 (pid " + pid_of(result, 1)));
  EXPECT_THAT(seen_by(result, 0), AllOf(HasSubstr(name_of(result, 1)), Not(HasSubstr("normally"))));
  EXPECT_EQ(seen_by(result, 0), seen_by(result, 2));
}

TEST_P(FailingJob, ShowsARankThatExitedWithoutAWord) {
  const auto result = run({"vanish-at", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("rank 2 (pid " + pid_of(result, 2)));
  EXPECT_EQ(seen_by(result, 0), name_of(result, 2) + " died");
  EXPECT_EQ(seen_by(result, 1), name_of(result, 2) + " died");
}

TEST_P(FailingJob, IsOverWhenItsLauncherIsKilled) {
  Command job = start({"hold"});
  everybody_is_ready(job);
  // Launcher, keeper, ranks with children and sockets.
  EXPECT_TRUE(test::eventually([&] { return left_.now().size() >= 1 + 1 + 3 * 3 + 3; }));
  job.signal(SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  job.finish();
  left_.expect_none(3s);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - killed);
  RecordProperty("gone_after_ms", static_cast<int>(ms.count()));
  std::cout << "[  TIMES   ] all gone " << ms.count() << " ms after the launcher (" << GetParam()
            << ")\n";
}

TEST_P(FailingJob, IsOverWhenItsLauncherIsTerminated) {
  Command job = start({"hold"});
  everybody_is_ready(job);
  job.signal(SIGTERM);
  const auto result = job.finish();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_LT(result.wall, 10s);
  left_.expect_none(3s);
}

TEST_P(FailingJob, EndsThoughGrandchildrenHoldOn) {
  Command job = start({"hold"});
  everybody_is_ready(job);
  ASSERT_TRUE(test::eventually([&] { return left_.now().size() >= 1 + 1 + 9; }));
  const auto ranks =
      test::run_command({"pgrep", "-P", std::to_string(job.pid()), "-x", "trireme_test_ra"});
  ASSERT_FALSE(ranks.out.empty()) << "no rank is a child of the launcher";
  ::kill(std::stoi(ranks.out), SIGKILL);
  const auto result = job.finish();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_LT(result.wall, 15s);
  left_.expect_none(3s);
}

TEST_P(FailingJob, GoesOnAfterMemoryWasRefused) {
  if (GetParam() != "shm") return;  // elsewhere no memory is shared
  for (const char* who : {"0", "1"}) {
    const auto result = run({"poor", who});
    EXPECT_EQ(result.code, 0) << result.err;
    for (const char* rank : {"[0] ", "[1] ", "[2] "}) {
      EXPECT_THAT(result.err, HasSubstr(std::string(rank) + "refused: allocate 4"));
      EXPECT_THAT(result.err, HasSubstr(std::string(rank) + "goes on"));
    }
    EXPECT_THAT(result.err, HasSubstr("rank " + std::string(who) + " (host "));
    EXPECT_THAT(result.err, HasSubstr("Cannot allocate memory"));
  }
}

TEST_P(FailingJob, GoesOnAfterAPauseThatIsLongerThanItsHeartbeat) {
  Command job({kTrireme, "run", "-n", "3", kTestRank, "work", "3"},
              {.environment = {{"TRIREME_BACKEND", GetParam()},
                               {"TRIREME_HEARTBEAT_S", "1"},
                               {"TRIREME_TIMEOUT_S", "2"}},
               .deadline = 30s});
  everybody_is_ready(job);
  job.signal(SIGTSTP);  // Ctrl-Z
  std::this_thread::sleep_for(2500ms);
  job.signal(SIGCONT);
  const auto result = job.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("[0] went on"), HasSubstr("[1] went on"), HasSubstr("[2] went on")));
}

TEST_P(FailingJob, StartsAgainWithFreshRanks) {
  // The second group must not meet what is left of the first.
  const auto result = test::run_command(
      {kTrireme, "run", "-n", "3", "--max-restarts", "1", kTestRank, "die-at", "1"},
      {.environment = {{"TRIREME_BACKEND", GetParam()}}, .deadline = 30s});
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1"));
  const std::string again =
      result.err.substr(std::min(result.err.size(), result.err.find("restart 1 of 1")));
  EXPECT_THAT(again, AllOf(HasSubstr("ready 0"), HasSubstr("ready 1"), HasSubstr("ready 2"),
                           HasSubstr("[0] saw at")));
}

}  // namespace
}  // namespace trireme
