// Strangers at the door, doors that are somebody else's, and those who have the wrong secret: they
// disturb nobody, and whoever is refused is told why.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <torch/torch.h>

#include <thread>

#include "support/bad_init.h"
#include "support/command.h"
#include "support/scratch.h"
#include "support/tcp_world.h"
#include "trireme/mesh/init.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using namespace test;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
                  "world", join_tcp({(self.scratch / "meet").string(), self.rank, 3}, deadline));
              EXPECT_LT(Clock::now() - began, 3s) << "silent strangers held it up";
              expect_it_works(world);
            },
            {.deadline = kLongest * 2});
  left.expect_none();
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
