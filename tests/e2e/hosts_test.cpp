// A job over two hosts, started by hand on each with `trireme run --nnodes 2`. The hosts are
// network namespaces with a cable between them and names of their own, so that nothing but tcp can
// carry the ranks' words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <regex>

#include "support/command.h"
#include "support/leftovers.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using test::Command;
using test::CommandResult;
using test::kBin;
using test::kTestRank;
using test::run_command;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Two namespaces, "a" and "b", and a cable; gone when this is.
class Hosts {
 public:
  Hosts() {
    must({"ip", "netns", "add", space("a")});
    must({"ip", "netns", "add", space("b")});
    must({"ip", "link", "add", "cable", "netns", space("a"), "type", "veth", "peer", "name",
          "cable", "netns", space("b")});
    for (const char* host : {"a", "b"}) {
      must({"ip", "-n", space(host), "addr", "add", address(host) + "/24", "dev", "cable"});
      must({"ip", "-n", space(host), "link", "set", "cable", "up"});
      must({"ip", "-n", space(host), "link", "set", "lo", "up"});
    }
  }
  ~Hosts() { remove(); }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// Only root can make them, and not in every container. Asked once; empty: they can be made.
  static const std::string& why_not() {
    static const std::string reason = [] {
      try {
        Hosts tried;
        return std::string();
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
    }();
    return reason;
  }

  std::string space(const std::string& host) const {
    return "trireme-" + std::to_string(::getpid()) + "-" + host;
  }
  std::string address(const std::string& host) const {
    return "10.231." + std::to_string(::getpid() % 250) + (host == "a" ? ".1" : ".2");
  }
  void cut_the_cable() { must({"ip", "-n", space("a"), "link", "set", "cable", "down"}); }

  /// What runs a command on that host, which calls itself host-a or host-b.
  std::vector<std::string> on(const std::string& host, std::vector<std::string> command) const {
    std::vector<std::string> words = {
        "ip",        "netns",   "exec",
        space(host), "unshare", "--uts",
        "sh",        "-c",      "hostname host-" + host + "; exec \"$@\"",
        "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

 private:
  void must(const std::vector<std::string>& command) {
    const auto result = run_command(command);
    if (result.code == 0) return;
    remove();
    throw std::runtime_error(command[0] + " " + command[1] + " " + command[2] + ": " + result.err);
  }
  void remove() {
    for (const char* host : {"a", "b"}) run_command({"ip", "netns", "del", space(host)});
  }
};

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Hosts::why_not().empty()) GTEST_SKIP() << "no two hosts here: " << Hosts::why_not();
    hosts_.emplace();
  }
  void TearDown() override {
    left_.expect_none(3s);
    hosts_.reset();
  }

  /// Two ranks on this host, of four.
  Command start(const std::string& host, std::vector<std::string> program,
                std::vector<std::pair<std::string, std::string>> more = {}) {
    std::vector<std::string> words = {kBin + "trireme",
                                      "run",
                                      "-n",
                                      "2",
                                      "--nnodes",
                                      "2",
                                      "--node-rank",
                                      host == "a" ? "0" : "1",
                                      "--master-addr",
                                      hosts_->address("a")};
    words.insert(words.end(), program.begin(), program.end());
    more.insert(more.begin(),
                {{"TRIREME_SECRET", "the secret of " + left_.mark() + " and nobody else"},
                 {"TRIREME_HEARTBEAT_S", "2"}});
    return Command(hosts_->on(host, std::move(words)), {.environment = more, .deadline = 40s});
  }
  void everybody_is_ready(Command& a, Command& b) {
    for (const char* line : {"ready 0", "ready 1"}) ASSERT_TRUE(a.wait_for(line)) << a.finish().err;
    for (const char* line : {"ready 2", "ready 3"}) ASSERT_TRUE(b.wait_for(line)) << b.finish().err;
  }
  static std::string pid_of(const CommandResult& result, int rank) {
    std::smatch found;
    return std::regex_search(result.err, found,
                             std::regex("ready " + std::to_string(rank) + " pid ([0-9]+)"))
               ? found[1].str()
               : "?";
  }

  struct Seen {
    std::string cause = "nothing";
    Clock::time_point when{};
  };
  static Seen seen_by(const CommandResult& result, int rank) {
    std::smatch found;
    const std::string number = std::to_string(rank);
    const std::regex form("\\[" + number + "\\] saw at ([0-9]+): .* on 'world', rank " + number +
                          ": (.*)");
    if (!std::regex_search(result.err, found, form)) return {"nothing, in " + result.err};
    return {found[2], Clock::time_point(Clock::duration(std::stoll(found[1])))};
  }
  static void note(const std::string& what, Clock::time_point from, const Seen& seen) {
    std::cout << "[  TIMES   ] " << what << ": "
              << std::chrono::duration<double, std::milli>(seen.when - from).count() << " ms\n";
  }
  /// A pipe that is still being read holds what a rank said so far; only its end tells it all.
  struct Both {
    CommandResult a, b;
  };
  static Both finish(Command& a, Command& b) {
    Both both;
    both.a = a.finish();
    both.b = b.finish();
    return both;
  }

  /// Kills that rank of host b, whose number the test learns from what it says.
  void kill_on_b(int victim) {
    Command a = start("a", {kTestRank, "loop"}), b = start("b", {kTestRank, "loop"});
    everybody_is_ready(a, b);
    const auto ranks =
        run_command({"pgrep", "-P", std::to_string(b.pid()), "-x", "trireme_test_ra"});
    std::istringstream pids(ranks.out);
    int pid = 0;
    for (int rank = 2; rank <= victim; ++rank)
      ASSERT_TRUE(pids >> pid) << "no such rank: " << ranks.out;
    const auto killed = Clock::now();
    ::kill(pid, SIGKILL);
    const auto [on_a, on_b] = finish(a, b);
    ASSERT_EQ(pid_of(on_b, victim), std::to_string(pid));
    EXPECT_EQ(on_b.code, 128 + SIGKILL);
    EXPECT_NE(on_a.code, 0);
    const std::string name =
        "rank " + std::to_string(victim) + " (host host-b, pid " + std::to_string(pid) + ") died";
    for (const int rank : {0, 1, 5 - victim}) {
      const Seen seen = seen_by(rank < 2 ? on_a : on_b, rank);
      EXPECT_THAT(seen.cause, HasSubstr(name)) << "says rank " << rank;
      EXPECT_LT(seen.when - killed, 1s) << "says rank " << rank;
      note("rank " + std::to_string(rank) + " says that rank " + std::to_string(victim) +
               " died after",
           killed, seen);
    }
  }

  test::Leftovers left_;
  std::optional<Hosts> hosts_;
};

TEST_F(TwoHosts, RunTheExamples) {
  Command a = start("a", {kBin + "01_hello_ranks"}), b = start("b", {kBin + "01_hello_ranks"});
  const auto [on_a, on_b] = finish(a, b);
  EXPECT_EQ(on_a.code, 0) << on_a.err;
  EXPECT_EQ(on_b.code, 0) << on_b.err;
  EXPECT_THAT(on_a.out,
              AllOf(HasSubstr("rank 0 of 4"), HasSubstr("rank 1 of 4"), HasSubstr("= 10")));
  EXPECT_THAT(on_b.out,
              AllOf(HasSubstr("rank 2 of 4"), HasSubstr("rank 3 of 4"), HasSubstr("= 10")));

  Command second_a = start("a", {kBin + "02_all_reduce"}),
          second_b = start("b", {kBin + "02_all_reduce"});
  const auto [again_a, again_b] = finish(second_a, second_b);
  EXPECT_EQ(again_a.code, 0) << again_a.err;
  EXPECT_EQ(again_b.code, 0) << again_b.err;
}

TEST_F(TwoHosts, NameARankThatWasKilledOnTheOtherHost) {
  kill_on_b(3);
}

TEST_F(TwoHosts, NameTheFirstRankOfAHostThatWasKilled) {
  kill_on_b(2);
}

TEST_F(TwoHosts, NameARankThatHangsOnTheOtherHost) {
  Command a = start("a", {kTestRank, "stop-at", "3"}), b = start("b", {kTestRank, "stop-at", "3"});
  const auto [on_a, on_b] = finish(a, b);
  const std::string name = "rank 3 (host host-b, pid " + pid_of(on_b, 3) + ") hangs";
  for (const int rank : {0, 1, 2})
    EXPECT_THAT(seen_by(rank < 2 ? on_a : on_b, rank).cause, HasSubstr(name)) << rank;
}

TEST_F(TwoHosts, NameTheOtherHostWhenTheCableIsCut) {
  Command a = start("a", {kTestRank, "loop"}), b = start("b", {kTestRank, "loop"});
  everybody_is_ready(a, b);
  const auto cut = Clock::now();
  hosts_->cut_the_cable();
  const auto [on_a, on_b] = finish(a, b);
  for (const int rank : {0, 1, 2, 3}) {
    const Seen seen = seen_by(rank < 2 ? on_a : on_b, rank);
    EXPECT_THAT(seen.cause, rank < 2 ? HasSubstr("rank 2 (host host-b, pid " + pid_of(on_b, 2))
                                     : HasSubstr("rank 0 (host host-a, pid " + pid_of(on_a, 0)));
    EXPECT_LT(seen.when - cut, 6s);
    note("rank " + std::to_string(rank) + " names the other host after (heartbeat 2 s)", cut, seen);
  }
}

TEST_F(TwoHosts, EndWhenOneLauncherIsKilled) {
  Command a = start("a", {kTestRank, "loop"}), b = start("b", {kTestRank, "loop"});
  everybody_is_ready(a, b);
  b.signal(SIGKILL);
  const auto [on_a, on_b] = finish(a, b);
  EXPECT_NE(on_a.code, 0);
  EXPECT_THAT(seen_by(on_a, 0).cause,
              AnyOf(HasSubstr("rank 2 (host host-b"), HasSubstr("rank 3 (host host-b")));
  EXPECT_EQ(seen_by(on_a, 0).cause, seen_by(on_a, 1).cause);
}

TEST_F(TwoHosts, LetRanksLeaveOneAfterTheOther) {
  // The first rank of a host carries its news; here it leaves before the other one does.
  Command a = start("a", {kTestRank, "leave-in-order"}),
          b = start("b", {kTestRank, "leave-in-order"});
  const auto [on_a, on_b] = finish(a, b);
  EXPECT_EQ(on_b.code, 0) << on_b.err;
  EXPECT_EQ(on_a.code, 0) << on_a.err;
  EXPECT_THAT(on_a.err, AllOf(HasSubstr("[0] went on"), HasSubstr("[1] went on")));
}

TEST_F(TwoHosts, NameTheRanksOfAHostThatNeverCame) {
  Command a = start("a", {kTestRank, "loop"}, {{"TRIREME_TIMEOUT_S", "2"}});
  const auto result = a.finish();
  EXPECT_EQ(result.code, 1);
  EXPECT_LT(result.wall, 10s);
  for (const char* rank : {"[0] ", "[1] "}) {
    const std::regex form("\\[" + std::string(1, rank[1]) +
                          "\\] error: [^\n]*\\b2\\b[^\n]*\\b3\\b[^\n]* never joined");
    EXPECT_TRUE(std::regex_search(result.err, form))
        << "rank " << rank << "should name ranks 2 and 3:\n"
        << result.err;
  }
}

TEST_F(TwoHosts, RefuseAHostWithAnotherSecret) {
  Command a = start("a", {kTestRank, "loop"}, {{"TRIREME_TIMEOUT_S", "3"}});
  Command b = start("b", {kTestRank, "loop"},
                    {{"TRIREME_TIMEOUT_S", "3"}, {"TRIREME_SECRET", "not the secret of this job"}});
  const auto [on_a, on_b] = finish(a, b);
  EXPECT_EQ(on_a.code, 1);
  EXPECT_EQ(on_b.code, 1);
  EXPECT_THAT(on_b.err, HasSubstr("secret"));
  EXPECT_THAT(on_a.err, HasSubstr("never joined"));
}

}  // namespace
}  // namespace trireme
