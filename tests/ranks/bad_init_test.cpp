// Ranks that come with the wrong papers, twice, never, or to the wrong door; and strangers at the
// door. Each gets one clear sentence, nobody waits longer than his patience, and nothing stays.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <torch/torch.h>

#include <thread>

#include "support/command.h"
#include "support/failing_world.h"
#include "support/leftovers.h"
#include "support/scratch.h"
#include "trireme/comm/bootstrap.h"
#include "trireme/comm/tcp/tcp.h"
#include "trireme/core/error.h"
#include "trireme/mesh/init.h"
#include "trireme/net/store.h"
#include "trireme/net/store_server.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using namespace test;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Refusal {
  std::string said;
  std::chrono::milliseconds after{0};
  bool is_timeout = false;
};

/// What comes of trying to join: one sentence of an error that a caller can act on.
Refusal refused(const std::function<void()>& joining) {
  const auto began = Clock::now();
  Refusal refusal;
  try {
    joining();
    ADD_FAILURE() << "nobody minded";
  } catch (const Error& error) {
    refusal.said = error.what();
    refusal.is_timeout = dynamic_cast<const TimeoutError*>(&error) != nullptr;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an error of ours: " << error.what();
  }
  refusal.after = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  EXPECT_THAT(refusal.said, Not(HasSubstr("\n")));
  EXPECT_LT(refusal.said.size(), 500u) << refusal.said;
  return refusal;
}

/// How ranks are told to meet: a free port of this machine, or a file.
class BadInit : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { left_.expect_none(); }

  struct Papers {
    int rank = 0, size = 1;
    std::string job = "today";
  };
  std::string url(const Rank& self, const Papers& papers) const {
    const std::string who = "?rank=" + std::to_string(papers.rank) +
                            "&size=" + std::to_string(papers.size) + "&job=" + papers.job;
    if (GetParam() == "file") return "file://" + (self.scratch / "meet").string() + who;
    return "tcp://127.0.0.1:" + port(self) + who;
  }
  /// The same for all ranks of one test; free when it was picked.
  static std::string port(const Rank& self) {
    if (self.rank == 0 && !std::filesystem::exists(self.scratch / "port")) pick_port(self);
    return read_word(self, "port");
  }
  static void pick_port(const Rank& self) {
    // Closed before the others hear of it: they would knock at this listener, not at the store.
    const uint16_t picked = net::Listener({"127.0.0.1", 0}).address().port;
    leave_word(self, "port", std::to_string(picked));
  }
  static void be_patient_for(const char* seconds) { ::setenv("TRIREME_TIMEOUT_S", seconds, 1); }

  const RunOptions how_{.deadline = kLongest * 2};
  Leftovers left_;
};
INSTANTIATE_TEST_SUITE_P(Through, BadInit, ::testing::Values("tcp", "file"),
                         [](const auto& name) { return name.param; });
class BadDoor : public BadInit {};
INSTANTIATE_TEST_SUITE_P(Through, BadDoor, ::testing::Values("tcp"),
                         [](const auto& name) { return name.param; });

TEST_P(BadDoor, AWrongSecretIsRefusedAndTheOthersSayWhoNeverCame) {
  run_ranks(
      3,
      [&](const Rank& self) {
        be_patient_for("2");
        if (self.rank == 2) ::setenv("TRIREME_SECRET", "somebody else's secret", 1);
        const Refusal refusal = refused([&] { init(url(self, {self.rank, 3})); });
        if (self.rank == 2) {
          EXPECT_THAT(refusal.said, HasSubstr("secret"));
          EXPECT_LT(refusal.after, 3s);
        } else {
          EXPECT_THAT(refusal.said, AllOf(HasSubstr("rank 2 of 3"), HasSubstr("never joined"),
                                          HasSubstr("cannot prove"), HasSubstr("rank 2 of job")));
          EXPECT_TRUE(refusal.is_timeout);
          EXPECT_LT(refusal.after, 6s);
        }
      },
      how_);
}

TEST(BadFile, ThatSomebodyElseHasLockedIsNotRemoved) {
  const Scratch scratch;
  const std::string path = scratch / "not-ours";
  put_bytes(path, "somebody's work");
  ::chmod(path.c_str(), 0600);
  const net::Fd held(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  EXPECT_THROW(init({.url = "file://" + path + "?rank=0&size=2", .timeout = 300ms}), TimeoutError);
  EXPECT_EQ(bytes_of(path), "somebody's work");
}

TEST_P(BadDoor, GarbageAtTheStoreDisturbsNobody) {
  run_ranks(
      3,
      [&](const Rank& self) {
        be_patient_for("15");
        std::vector<net::Socket> vandals;
        const auto began = Clock::now();
        if (self.rank == 2) {  // comes after the vandals
          const net::Address door{"127.0.0.1", static_cast<uint16_t>(std::stoi(port(self)))};
          const std::string texts[] = {"GET / HTTP/1.1\r\n\r\n", std::string(8, '\xff'),
                                       std::string(100'000, 'x'), ""};
          for (int i = 0; i < 40; ++i) {
            vandals.push_back(net::connect(door, Clock::now() + kLongest));
            const std::string& text = texts[i % 4];
            [[maybe_unused]] const auto sent =
                ::send(vandals.back().fd(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (i % 5 == 0) vandals.pop_back();
          }
        }
        expect_it_works(init(url(self, {self.rank, 3})));
        EXPECT_LT(Clock::now() - began, 5s);
      },
      how_);
}

TEST(BadNeighbours, AtTheRanksOwnDoorsDisturbNobody) {
  Leftovers left;
  run_ranks(3,
            [&](const Rank& self) {
              const auto deadline = Clock::now() + kLongest;
              const auto store = net::open_file_store((self.scratch / "meet").string(),
                                                      {"today", "rank", self.rank, 3}, deadline);
              const comm::Bootstrap bootstrap{.store = *store,
                                              .secret = net::secret_of_job("today"),
                                              .job = "today",
                                              .rank = self.rank,
                                              .size = 3,
                                              .address = "127.0.0.1",
                                              .host_key = {},
                                              .place = "a file",
                                              .deadline = deadline};
              leave_word(self, "pid" + std::to_string(self.rank), std::to_string(::getpid()));
              std::vector<net::Socket> vandals;
              if (self.rank == 2) {  // the others' doors are open: they wait for this rank
                for (const char* pid : {"pid0", "pid1"}) {
                  std::vector<int> ports;
                  ASSERT_TRUE(eventually(
                      [&] {
                        return !(ports = tcp_listeners_of(std::stoi(read_word(self, pid)))).empty();
                      },
                      kLongest));
                  for (int i = 0; i < 6; ++i) {
                    vandals.push_back(net::connect(
                        {"127.0.0.1", static_cast<uint16_t>(ports.front())}, deadline));
                    if (i % 3 == 0)
                      vandals.back().send_all("hello, is this the post office?", 31, deadline);
                    if (i % 3 == 1) vandals.pop_back();
                  }
                }
              }
              const auto began = Clock::now();
              const comm::Communicator world(
                  "world", comm::make_tcp(comm::ProcessWorld(bootstrap, comm::TransportKind::Tcp)));
              EXPECT_LT(Clock::now() - began, 3s) << "silent strangers held it up";
              expect_it_works(world);
            },
            {.deadline = kLongest * 2});
  left.expect_none();
}

TEST_P(BadInit, ASecondRank3IsTurnedAway) {
  run_ranks(
      5,
      [&](const Rank& self) {
        be_patient_for("5");
        const int rank = std::min(self.rank, 3);  // two of them are rank 3
        if (self.rank >= 3) leave_word(self, "about to come " + std::to_string(self.rank), "");
        if (self.rank == 1) {
          for (const char* word : {"about to come 3", "about to come 4"}) read_word(self, word);
          std::this_thread::sleep_for(
              500ms);  // the scene: one comes late, so that both meet the same world
        }
        std::string said;
        try {
          expect_it_works(init(url(self, {rank, 4})));
        } catch (const Error& error) {
          said = error.what();
        }
        if (self.rank < 3) {
          EXPECT_EQ(said, "");
          return;
        }
        leave_word(self, "said" + std::to_string(self.rank), said);
        const std::string one = read_word(self, "said3"), two = read_word(self, "said4");
        EXPECT_NE(one.empty(), two.empty()) << "one: " << one << "\ntwo: " << two;
        EXPECT_THAT(one + two,
                    AllOf(HasSubstr("rank 3"), AnyOf(HasSubstr("taken"), HasSubstr("twice")),
                          HasSubstr("pid "), Not(HasSubstr("\n"))));
      },
      how_);
}

TEST_P(BadInit, SizesThatDifferAreTold) {
  run_ranks(
      3,
      [&](const Rank& self) {
        be_patient_for("2");
        if (self.rank != 0) read_word(self, "first");  // the file belongs to whoever makes it
        if (self.rank == 0) {
          std::thread([self, this] {
            eventually(
                [&] {
                  return GetParam() == "tcp" || std::filesystem::exists(self.scratch / "meet");
                },
                kLongest);
            leave_word(self, "first", "");
          }).detach();
        }
        const Refusal refusal = refused([&] {
          init(url(self, {self.rank, self.rank == 1 ? 4 : 3}));
        });
        EXPECT_LT(refusal.after, 6s);
        if (self.rank == 1) {
          EXPECT_THAT(refusal.said, AllOf(HasSubstr("3"), HasSubstr("4"),
                                          AnyOf(HasSubstr("world"), HasSubstr("size"))));
          EXPECT_LT(refusal.after, 2s) << refusal.said;
        } else {
          EXPECT_THAT(refusal.said, HasSubstr("rank 1 of 3"));
        }
      },
      how_);
}

TEST_P(BadInit, RanksThatNeverCameAreNamedAndNothingStays) {
  run_ranks(
      2,
      [&](const Rank& self) {
        be_patient_for("2");
        const Refusal refusal = refused([&] { init(url(self, {self.rank, 4})); });
        EXPECT_TRUE(refusal.is_timeout);
        EXPECT_THAT(refusal.said, ::testing::ContainsRegex("ranks? 2,? (and )?3 of 4 never joined"))
            << refusal.said;
        EXPECT_LT(refusal.after, 6s);
        meet(self, "over", {0, 1});
        EXPECT_FALSE(std::filesystem::exists(self.scratch / "meet"))
            << "the file would be in the next job's way";
      },
      how_);
}

TEST_P(BadDoor, WhomTheFirstRankWaitsForIsSaidMeanwhile) {
  run_ranks(
      3,
      [&](const Rank& self) {
        be_patient_for("30");
        if (self.rank == 2) std::this_thread::sleep_for(6s);
        if (self.rank == 0) ::testing::internal::CaptureStderr();
        init(url(self, {self.rank, 3})).barrier();
        if (self.rank != 0) return;
        EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                    HasSubstr("waiting for rank 2 of 3 to join job 'today', 5"));
      },
      how_);
}

TEST_P(BadInit, AnotherJobsStoreIsNotOurs) {
  run_ranks(
      2,
      [&](const Rank& self) {
        be_patient_for("3");
        const auto deadline = Clock::now() + kLongest;
        if (self.rank == 0) {  // yesterday's job, still there
          std::unique_ptr<net::StoreServer> server;
          if (GetParam() == "tcp")
            server = std::make_unique<net::StoreServer>(
                net::Address{"127.0.0.1", static_cast<uint16_t>(std::stoi(port(self)))},
                net::secret_of_job("yesterday"), "yesterday", 2);
          else
            net::open_file_store((self.scratch / "meet").string(), {"yesterday", "rank", 0, 2},
                                 deadline)
                ->set("a", "b", deadline);
          leave_word(self, "yesterday", "");
          read_word(self, "refused");
          return;
        }
        read_word(self, "yesterday");
        const Refusal refusal = refused([&] { init(url(self, {1, 2, "today"})); });
        EXPECT_THAT(refusal.said, HasSubstr("job"));
        EXPECT_THAT(refusal.said, HasSubstr("today"));
        EXPECT_LT(refusal.after, 2s);
        leave_word(self, "refused", "");
      },
      how_);
}

TEST_P(BadInit, WhatAKilledJobLeftDoesNotKeepTheNextApart) {
  // Process 2 was rank 0 of the same job, the time before, and was killed while it waited for
  // rank 1.
  run_ranks(3,
            [&](const Rank& self) {
              be_patient_for("3");
              if (self.rank == 2) {
                pick_port(self);
                const std::jthread fate([&] {
                  eventually(
                      [&] {
                        return GetParam() == "tcp" ? !tcp_listeners_of(::getpid()).empty()
                                                   : std::filesystem::exists(self.scratch / "meet");
                      },
                      kLongest);
                  raise_on_record(self, SIGKILL);
                });
                init(url(self, {0, 2}));
              }
              wait_until_dead(self, 2);
              std::string said;
              try {
                expect_it_works(init(url(self, {self.rank, 2})));
              } catch (const Error& error) {
                said = error.what();
              }
              // They meet; or they say what is in their way.
              if (GetParam() == "tcp") {
                EXPECT_EQ(said, "");
              } else if (self.rank == 0 && !said.empty()) {
                EXPECT_THAT(
                    said, AllOf(HasSubstr((self.scratch / "meet").string()), HasSubstr("remove")));
              }
            },
            {.deadline = kLongest * 2, .dies = {2}});
}

TEST_P(BadInit, BackendsThatDifferAreToldToEverybody) {
  run_ranks(
      3,
      [&](const Rank& self) {
        be_patient_for("5");
        ::setenv("TRIREME_BACKEND", self.rank == 1 ? "tcp" : "shm", 1);
        const Refusal refusal = refused([&] { init(url(self, {self.rank, 3})); });
        EXPECT_THAT(refusal.said, AllOf(HasSubstr("TRIREME_BACKEND"), HasSubstr("rank 1")))
            << refusal.said;
        EXPECT_LT(refusal.after, 3s);
      },
      how_);
}

TEST_P(BadInit, ABackendThatThereIsNotIsToldAtOnce) {
  run_ranks(
      2,
      [&](const Rank& self) {
        be_patient_for("2");
        ::setenv("TRIREME_BACKEND", self.rank == 1 ? "carrier-pigeon" : "auto", 1);
        const Refusal refusal = refused([&] { init(url(self, {self.rank, 2})); });
        EXPECT_THAT(refusal.said, HasSubstr(self.rank == 1 ? "carrier-pigeon" : "rank 1"));
        EXPECT_LT(refusal.after, self.rank == 1 ? 1s : 5s);
      },
      how_);
}

TEST_P(BadDoor, APortThatIsTakenIsTold) {
  run_ranks(
      2,
      [&](const Rank& self) {
        be_patient_for("2");
        std::optional<net::Listener> stranger;  // who listens, and never says a word
        if (self.rank == 1) {
          stranger.emplace(net::Address{"127.0.0.1", 0});
          leave_word(self, "port", std::to_string(stranger->address().port));
        } else {
          read_word(self, "port");
        }
        const Refusal refusal = refused([&] { init(url(self, {self.rank, 2})); });
        EXPECT_THAT(refusal.said, HasSubstr("127.0.0.1:" + port(self)));
        if (self.rank == 0) {
          EXPECT_THAT(refusal.said, HasSubstr("in use"));
          EXPECT_LT(refusal.after, 1s);
        }
        EXPECT_LT(refusal.after, 6s);
        meet(self, "over", {0, 1});
      },
      how_);
}

}  // namespace
}  // namespace trireme
