// Ranks that come with the wrong papers, twice, or never. Each gets one clear sentence, nobody
// waits longer than his patience, and nothing stays.
#include "support/bad_init.h"

#include <signal.h>
#include <unistd.h>

#include <torch/torch.h>

#include <thread>

#include "support/command.h"
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

INSTANTIATE_TEST_SUITE_P(Through, BadInit, ::testing::Values("tcp", "file"),
                         [](const auto& name) { return name.param; });

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

}  // namespace
}  // namespace trireme
