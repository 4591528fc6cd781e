// Ranks that do not die but stop, are slow, leave, give up, or never come to an operation: who is
// blamed, for what, and who is left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include <thread>

#include "support/command.h"
#include "support/failing_world.h"
#include "support/leftovers.h"
#include "trireme/core/error.h"
#include "trireme/net/socket.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using namespace test;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSoonMs = 1000;

class Trouble : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { left_.expect_none(); }
  const std::string& backend() const { return GetParam(); }

  /// With a heartbeat of a second.
  comm::Communicator join_watchful(const Rank& self) const {
    ::setenv("TRIREME_HEARTBEAT_S", "1", 1);
    return join(self, backend());
  }

 private:
  Leftovers left_;
};

class Hang : public Trouble {};
class Leaving : public Trouble {};
class LeavingSockets : public Trouble {};
class Timeout : public Trouble {};

const auto kBackends = ::testing::ValuesIn(failing_backends());
const auto kName = [](const auto& name) { return name.param; };
INSTANTIATE_TEST_SUITE_P(Over, Hang, kBackends, kName);
INSTANTIATE_TEST_SUITE_P(Over, Leaving, kBackends, kName);
INSTANTIATE_TEST_SUITE_P(Over, LeavingSockets, ::testing::Values("tcp"), kName);
INSTANTIATE_TEST_SUITE_P(Over, Timeout, kBackends, kName);

TEST_P(Hang, OfAStoppedRankIsFoundByItsHeartbeat) {
  // The operations themselves have 300 s.
  for (const auto& [what, victim] : std::vector<std::pair<std::string, int>>{
           {"all_reduce_16MB", 1}, {"barrier", 0}, {"broadcast", 2}, {"send_recv", 1}}) {
    SCOPED_TRACE(what + ", rank " + std::to_string(victim) + " stops");
    run_ranks(3,
              [&](const Rank& self) {
                const auto world = join_watchful(self);
                const Doing doing = make_doing(what, world);
                if (self.rank == victim) return fall_while(self, SIGSTOP, doing, world, 3, 300us);
                const Report report = until_it_fails(self, [&] { doing.once(world); });
                EXPECT_THAT(report.cause, HasSubstr(name_of_fallen(self, victim) + " hangs"));
                const double ms = ms_between(time_of_fall(self, victim), report.when);
                record_ms("a stopped rank is reported after (heartbeat 1 s)", ms);
                EXPECT_GT(ms, 700);
                EXPECT_LT(ms, 5000);
                expect_good_report(self, world, report, doing.said,
                                   {victim == 0 ? 1 : 0, victim == 2 ? 1 : 2});
              },
              {.deadline = kLongest * 2, .stopped = {victim}});
  }
}

TEST_P(Hang, IsToldToTheOneThatHungWhenItComesBack) {
  run_ranks(3,
            [&](const Rank& self) {
              const auto world = join_watchful(self);
              const Doing doing = make_doing("all_reduce_1KB", world);
              doing.once(world);
              if (self.rank == 1) raise_on_record(self, SIGSTOP);
              const Report report = until_it_fails(self, [&] { doing.once(world); });
              const std::string name = name_of_fallen(self, 1);
              EXPECT_THAT(report.cause, HasSubstr(name + " hangs"));
              if (self.rank == 0) ::kill(std::stoi(name.substr(name.find("pid ") + 4)), SIGCONT);
              expect_good_report(self, world, report, doing.said, {0, 1, 2});
            },
            {.deadline = kLongest * 2});
}

TEST_P(Hang, IsNotReportedWhenAllWereStoppedTogether) {
  // As Ctrl-Z does: longer than the heartbeat, and longer than an operation may take.
  run_ranks(3,
            [&](const Rank& self) {
              const auto world = join_watchful(self);
              world.set_timeout(2s);
              const auto began = Clock::now();
              leave_word(self, "pid" + std::to_string(self.rank), std::to_string(::getpid()));
              pid_t helper = 0;
              if (self.rank == 0) {
                std::string pids;
                for (int rank = 0; rank < 3; ++rank)
                  pids += " " + read_word(self, "pid" + std::to_string(rank));
                std::string script = "kill -STOP" + pids + "; sleep 3; kill -CONT" + pids;
                std::string words[] = {"sh", "-c", script};
                char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
                ASSERT_EQ(::posix_spawn(&helper, "/bin/sh", nullptr, nullptr, argv, environ), 0);
              }
              for (float over = 0; over == 0;) {
                const auto flag = torch::zeros({1});
                if (self.rank == 0 && ::waitpid(helper, nullptr, WNOHANG) == helper) flag.fill_(1);
                world.all_reduce(flag).wait();
                over = flag.item<float>();
              }
              EXPECT_GT(Clock::now() - began, 2500ms) << "nobody was stopped";
            },
            {.deadline = kLongest * 2});
}

TEST_P(Hang, IsNotReportedOfARankThatComputesForLong) {
  run_ranks(3,
            [&](const Rank& self) {
              const auto world = join_watchful(self);
              const auto data = torch::full({1000}, self.rank + 1.0);
              // Busy, with never a call to us; the others wait for it.
              if (self.rank == 1) {
                for (const auto end = Clock::now() + 2500ms; Clock::now() < end;) {
                }
              }
              world.all_reduce(data).wait();
              EXPECT_EQ(data.sum().item<float>(), 6000);
            },
            {.deadline = kLongest * 2});
}

TEST_P(Hang, CannotBeFakedByStrangersWhoConnectAndSayNothing) {
  // Connections to the socket on which rank 1 hands out memory, by somebody who never speaks.
  run_ranks(3,
            [&](const Rank& self) {
              const auto world = join_watchful(self);
              leave_word(self, "pid" + std::to_string(self.rank), std::to_string(::getpid()));
              std::vector<net::Socket> silent;
              if (self.rank == 2) {
                const auto names = abstract_names_of(std::stoi(read_word(self, "pid1")));
                ASSERT_FALSE(names.empty())
                    << "rank 1 listens on nothing: this test must be written anew";
                for (int i = 0; i < 8; ++i)
                  silent.push_back(
                      net::connect_unix_abstract(names.front().substr(1), Clock::now() + kLongest));
              }
              const auto end = Clock::now() + 2500ms;
              for (float over = 0; over == 0;) {
                const auto flag =
                    torch::full({1}, self.rank == 0 && Clock::now() > end ? 1.0 : 0.0);
                world.all_reduce(flag).wait();
                over = flag.item<float>();
              }
            },
            {.deadline = kLongest * 2});
}

TEST_P(Leaving, EarlyIsNamedForWhatItIs) {
  for (const char* what : {"all_reduce_1KB", "barrier", "broadcast", "gather", "send_recv"}) {
    SCOPED_TRACE(what);
    // Whoever is waited for: the root of a broadcast, a leaf of a gather.
    const int leaver = std::string(what) == "broadcast" ? 2 : 1;
    run_ranks(3,
              [&](const Rank& self) {
                std::optional<comm::Communicator> world = join(self, backend());
                const Doing doing = make_doing(what, *world);
                for (int round = 0; round < 3; ++round) doing.once(*world);
                leave_word(self, "ready" + std::to_string(self.rank), "ready");
                if (self.rank == leaver) {
                  // Who sends may be through before the others are: leave when they are too.
                  for (int other = 0; other < self.size; ++other)
                    (void)read_word(self, "ready" + std::to_string(other));
                  leave_word(self, "leaver", std::to_string(::getpid()));
                  return;
                }
                const auto began = Clock::now();
                const Report report = until_it_fails(self, [&] { doing.once(*world); });
                EXPECT_THAT(report.cause,
                            AllOf(HasSubstr("rank " + std::to_string(leaver) + " (host "),
                                  HasSubstr("pid " + read_word(self, "leaver") + ")"),
                                  HasSubstr("left the job normally"), Not(HasSubstr("died"))));
                EXPECT_FALSE(report.is_timeout);
                record_ms("a rank that left is reported after", ms_between(began, report.when));
                EXPECT_LT(ms_between(began, report.when), kSoonMs);
                expect_good_report(self, *world, report, doing.said, {0, leaver == 1 ? 2 : 1});
              },
              {.deadline = kLongest * 2});
  }
}

TEST_P(Leaving, AfterItsPartIsDoneDisturbsNobody) {
  run_ranks(3,
            [&](const Rank& self) {
              std::optional<comm::Communicator> world = join(self, backend());
              const auto rest =
                  world->split(self.rank == 2 ? "alone" : "rest", self.rank == 2 ? 1 : 0, 0);
              const auto mine = torch::full({1 << 18}, self.rank + 1.0),
                         all = torch::zeros({3 << 18});
              if (self.rank == 2) {
                world->send(mine, 1).wait();
                world->gather(all, mine, 0).wait();
                world->broadcast(mine, 2).wait();
                return;
              }
              // The scene: they come when the last rank may long have finished with it.
              std::this_thread::sleep_for(200ms);
              const auto other = torch::zeros({1 << 18});
              if (self.rank == 1) {
                world->recv(other, 2).wait();
                EXPECT_EQ(other.min().item<float>(), 3);
              }
              world->gather(all, mine, 0).wait();
              if (self.rank == 0) {
                EXPECT_EQ(all.mean().item<float>(), 2);
              }
              world->broadcast(other, 2).wait();
              EXPECT_EQ(other.min().item<float>(), 3);
              const auto data = torch::ones({100000});
              const auto end = Clock::now() + 500ms;
              for (float over = 0; over == 0;) {
                if (rest.rank() == 0) rest.send(data, 1).wait();
                if (rest.rank() == 1) rest.recv(data, 0).wait();
                const auto flag = torch::full({1}, Clock::now() > end ? 1.0 : 0.0);
                rest.all_reduce(flag).wait();  // both see the end in the same round
                over = flag.item<float>();
              }
            },
            {.deadline = kLongest * 2});
}

TEST_P(LeavingSockets, LongBeforeItsLastMessageIsTakenLosesNothing) {
  run_ranks(2,
            [&](const Rank& self) {
              std::optional<comm::Communicator> world = join(self, backend());
              // The first is waited for at once; so nobody steps the next one until it is, too.
              world->broadcast(torch::zeros({1 << 16}), 0).wait();
              const auto data = torch::full({3 << 18}, self.rank == 0 ? 7.0 : 0.0);
              if (self.rank == 0) {
                world->broadcast(data, 0).wait();  // most of it waits in this host's kernel
                world.reset();                     // and after a second it is left alone there
                leave_word(self, "gone", "");
                return;
              }
              read_word(self, "gone");
              auto late = world->broadcast(data, 0);
              // The scene: an operation in which nothing came for so long makes a rank ask the
              // others what they do. A question to one that is gone is answered by a reset.
              std::this_thread::sleep_for(150ms);
              late.wait();
              EXPECT_EQ(data.min().item<float>(), 7);
            },
            {.deadline = kLongest * 2});
}

TEST_P(Leaving, AtDifferentTimesAfterTheLastBarrierDisturbsNobody) {
  run_ranks(4,
            [&](const Rank& self) {
              for (int job = 0; job < 15; ++job) {
                const auto world = join(self, backend(), "meet" + std::to_string(job));
                const auto data = torch::full({1 << 16}, self.rank + 1.0);
                world.all_reduce(data).wait();
                ASSERT_EQ(data[0].item<float>(), 10);
                world.barrier();
                if ((self.rank + job) % 4 == 0)
                  std::this_thread::sleep_for(5ms);  // the scene: one is late
              }
            },
            {.deadline = kLongest * 2});
}

TEST_P(Leaving, ByAbortReachesAllWithItsReason) {
  run_ranks(3,
            [&](const Rank& self) {
              const auto world = join(self, backend());
              const Doing doing = make_doing("all_reduce_1KB", world);
              for (int round = 0; round < 3; ++round) doing.once(world);
              // An abort ends what the others have not finished, so it waits for their last round.
              leave_word(self, "ready" + std::to_string(self.rank), "ready");
              for (int other = 0; other < self.size; ++other)
                (void)read_word(self, "ready" + std::to_string(other));
              const auto began = Clock::now();
              if (self.rank == 1) world.abort("the loss is not a number");
              const Report report = until_it_fails(self, [&] { doing.once(world); });
              EXPECT_THAT(report.cause, AllOf(HasSubstr("rank 1 (host "),
                                              HasSubstr("aborted: the loss is not a number")));
              EXPECT_LT(ms_between(began, report.when), kSoonMs);
              expect_good_report(self, world, report, doing.said, {0, 1, 2});
            },
            {.deadline = kLongest * 2});
}

TEST_P(Timeout, NamesTheOneThatDidNotCome) {
  run_ranks(3,
            [&](const Rank& self) {
              const auto world = join(self, backend());
              world.barrier();
              world.set_timeout(700ms);
              if (self.rank == 1) {  // alive, but elsewhere
                read_word(self, "cause0");
                read_word(self, "cause2");
                const Report late = until_it_fails(self, [&] { world.barrier(); });
                return expect_good_report(self, world, late, "barrier", {0, 1, 2});
              }
              const auto data = torch::ones({100});
              const auto began = Clock::now();
              const Report report = until_it_fails(self, [&] { world.all_reduce(data).wait(); });
              EXPECT_TRUE(report.is_timeout);
              EXPECT_THAT(report.cause,
                          AllOf(HasSubstr("rank 1 (host "), Not(HasSubstr("rank 0 (")),
                                Not(HasSubstr("rank 2 ("))));
              EXPECT_GT(ms_between(began, report.when), 500);
              EXPECT_LT(ms_between(began, report.when), 3000);
              expect_good_report(self, world, report, "all_reduce", {0, 1, 2});
            },
            {.deadline = kLongest * 2});
}

TEST_P(Timeout, NamesBothThatDidNotCome) {
  for (const char* what :
       {"all_reduce_1KB", "all_reduce_16MB", "barrier", "all_gather", "gather"}) {
    SCOPED_TRACE(what);
    run_ranks(4,
              [&](const Rank& self) {
                const auto world = join(self, backend());
                const Doing doing = make_doing(what, world);
                doing.once(world);
                world.barrier();
                world.set_timeout(700ms);
                if (self.rank == 1 || self.rank == 2) {
                  read_word(self, "over");
                  return;
                }
                if (std::string(what) == "gather" &&
                    self.rank == 3) {  // a leaf waits for the root, or for nobody
                  try {
                    doing.once(world);
                  } catch (const TimeoutError&) {
                  }
                  read_word(self, "over");
                  return;
                }
                const Report report = until_it_fails(self, [&] { doing.once(world); });
                EXPECT_TRUE(report.is_timeout);
                EXPECT_THAT(report.cause,
                            AllOf(HasSubstr("rank 1 (host "), HasSubstr("rank 2 (host "),
                                  Not(HasSubstr("rank 0 (")), Not(HasSubstr("rank 3 ("))));
                leave_word(self, "over", "");
              },
              {.deadline = kLongest * 2});
  }
}

}  // namespace
}  // namespace trireme
