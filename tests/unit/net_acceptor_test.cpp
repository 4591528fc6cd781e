// The one way into a process, and the way to call many of them at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <thread>

#include "support/net_support.h"
#include "support/sanitized.h"
#include "trireme/core/error.h"
#include "trireme/net/acceptor.h"
#include "trireme/net/dialer.h"

namespace trireme::net::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Secret kAcceptorSecret = Secret::from_text("the secret of the acceptor tests");

Identity who(const char* role, int rank = 1, int size = 64) {
  return {.job = "acceptor", .role = role, .rank = rank, .size = size};
}

/// An acceptor that a thread keeps, and those who came in.
class RunningAcceptor {
 public:
  explicit RunningAcceptor(Fd listener,
                           Acceptor::Options::Users users = Acceptor::Options::Users::Any)
      : acceptor_(
            std::move(listener),
            {.secret = kAcceptorSecret, .me = who("keeper", 0), .roles = {"guest"}, .users = users},
            [this](Socket socket, const Identity& guest) {
              guests_[guest.rank] = std::move(socket);
              ++num_guests;
            }),
        thread_([this](std::stop_token stop) {
          while (!stop.stop_requested()) {
            acceptor_.step();
            wait_ready(acceptor_.fd(), POLLIN, std::min(acceptor_.due(), in(milliseconds(10))));
            num_turned_away = acceptor_.num_turned_away();
          }
        }) {}
  ~RunningAcceptor() {
    thread_.request_stop();
    thread_.join();
  }
  std::vector<std::string> turned_away() { return acceptor_.turned_away(); }
  std::atomic<int> num_guests{0};
  std::atomic<int64_t> num_turned_away{0};

 private:
  std::map<int, Socket> guests_;
  Acceptor acceptor_;
  std::jthread thread_;
};

bool soon_is(const std::function<bool()>& condition) {
  const auto limit = soon();
  while (!condition() && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(2));
  return condition();
}

/// While it lives, this process can open nothing.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 3;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

std::ptrdiff_t num_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(Acceptor, LetsInThoseWithTheRightRoleOnly) {
  Listener listener(kLoopback);
  const Address address = listener.address();
  RunningAcceptor acceptor(listener.release());
  connect_and_prove(address, "keeper", kAcceptorSecret, who("guest", 3), soon());
  EXPECT_TRUE(soon_is([&] { return acceptor.num_guests == 1; }));
  EXPECT_THAT(sentence_of<CommError>([&] {
                connect_and_prove(address, "keeper", kAcceptorSecret, who("burglar"), soon());
              }),
              HasSubstr("does not accept the role 'burglar'"));
  EXPECT_THAT(sentence_of<CommError>([&] {
                connect_and_prove(address, "store", kAcceptorSecret, who("guest"), soon());
              }),
              AllOf(HasSubstr("'keeper'"), HasSubstr("'store'")));
  EXPECT_THAT(sentence_of<CommError>([&] {
                connect_and_prove(address, "keeper", Secret::random(), who("guest", 7), soon());
              }),
              HasSubstr("TRIREME_SECRET"));
  EXPECT_TRUE(soon_is([&] { return acceptor.num_turned_away == 2; }));
  EXPECT_THAT(acceptor.turned_away().back(),
              AllOf(HasSubstr("cannot prove"), HasSubstr("guest 7")));
}

TEST(Acceptor, ManySilentAndTricklingStrangersCostLittleAndDelayNobody) {
  Listener listener(kLoopback);
  const Address address = listener.address();
  RunningAcceptor acceptor(listener.release());
  const size_t before = resident_bytes();
  std::list<Socket> strangers;
  for (int i = 0; i < 450; ++i) {
    strangers.push_back(connect(address, soon()));
    if (i % 2 == 0) strangers.back().send_all("TRI", 3, soon());
  }
  const auto began = Clock::now();
  for (int i = 0; i < 5; ++i)
    connect_and_prove(address, "keeper", kAcceptorSecret, who("guest", i), soon());
  EXPECT_LT(Clock::now() - began, seconds(4)) << "strangers are given 5 s, guests do not wait";
  EXPECT_TRUE(soon_is([&] { return acceptor.num_guests == 5; }));
  // 256 and one for each of 64 ranks are kept at most: the oldest had to go.
  last_words(strangers.front());
  if (!test::kSanitized) {
    EXPECT_LT(resident_bytes(), before + (1 << 20));
  }
}

TEST(Acceptor, AStrangerThatTalksGarbageIsDroppedAtOnce) {
  Listener listener(kLoopback);
  const Address address = listener.address();
  RunningAcceptor acceptor(listener.release());
  Socket stranger = connect(address, soon());
  const std::string garbage(100'000, 'x');
  try {
    stranger.send_all(garbage.data(), garbage.size(), soon());
    last_words(stranger);
  } catch (const CommError&) {  // it hung up before it had heard all
  }
}

TEST(Acceptor, OutOfDescriptorsItPausesAndGoesOnLater) {
  Listener listener(kLoopback);
  const Address address = listener.address();
  RunningAcceptor acceptor(listener.release());
  Socket waiting = connect(address, soon());  // its other end must be accepted yet, or just was
  rusage used_before{}, used_after{};
  {
    const NoDescriptors none;
    ::getrusage(RUSAGE_SELF, &used_before);
    std::this_thread::sleep_for(milliseconds(300));
    ::getrusage(RUSAGE_SELF, &used_after);
  }
  const auto spent =
      seconds(used_after.ru_utime.tv_sec - used_before.ru_utime.tv_sec) +
      std::chrono::microseconds(used_after.ru_utime.tv_usec - used_before.ru_utime.tv_usec);
  EXPECT_LT(spent, milliseconds(150)) << "it kept a core busy with a listener it cannot serve";
  connect_and_prove(address, "keeper", kAcceptorSecret, who("guest"), soon());
}

TEST(Acceptor, OnAUnixSocketServesManyWhileOneStandsInTheWay) {
  const std::string name = "trireme-acceptor-test-" + std::to_string(::getpid());
  RunningAcceptor acceptor(listen_unix_abstract(name), Acceptor::Options::Users::Same);
  // Stops in the middle of its handshake, as a rank does that is sent SIGSTOP.
  Socket stopped = connect_unix_abstract(name, soon());
  stopped.send_all("TRIREME", 7, soon());
  const auto began = Clock::now();
  for (int i = 0; i < 50; ++i)
    connect_and_prove({"@" + name, 0}, "keeper", kAcceptorSecret, who("guest", i), soon());
  EXPECT_LT(Clock::now() - began, seconds(4));
  EXPECT_TRUE(soon_is([&] { return acceptor.num_guests == 50; }));
}

TEST(Acceptor, ThatHangsUpOnALateGuestIsCalledAgain) {
  // Like a guest that was stopped for longer than the acceptor waits: the first connection is cut.
  Listener listener(kLoopback);
  const Address address = listener.address();
  std::jthread keeper([&] {
    Socket first = listener.accept(soon());
    first = Socket();
    Socket second = listener.accept(soon());
    prove(second, Handshake(Handshake::Side::Server, kAcceptorSecret, who("keeper", 0)), soon());
  });
  const auto proven = connect_and_prove(address, "keeper", kAcceptorSecret, who("guest"), soon());
  EXPECT_EQ(proven.peer.role, "keeper");
}

TEST(Dialer, ReachesManyDoorsAtOnceAlsoThoseThatOpenLate) {
  constexpr int kDoors = 40;
  std::vector<Address> addresses;
  std::vector<Fd> listeners;
  for (int i = 0; i < kDoors; ++i) {
    Listener listener(kLoopback);
    addresses.push_back(listener.address());
    listeners.push_back(listener.release());
  }
  std::map<int, Socket> reached;
  Dialer dialer(kAcceptorSecret, [&](Socket socket, const Dialer::Call& call) {
    reached[call.rank] = std::move(socket);
  });
  for (int i = 0; i < kDoors; ++i)
    dialer.call({addresses[static_cast<size_t>(i)], "keeper", 0, who("guest", i)});
  dialer.step();  // all are called now, and nobody has opened
  std::list<RunningAcceptor> acceptors;
  for (Fd& listener : listeners) acceptors.emplace_back(std::move(listener));
  int calls = 0;
  const auto all_in = [&] {
    calls = 0;
    for (const RunningAcceptor& acceptor : acceptors) calls += acceptor.num_guests;
    return calls == kDoors;
  };
  for (const auto limit = soon(); !all_in() && Clock::now() < limit;) {
    dialer.step();
    wait_ready(dialer.fd(), POLLIN, in(milliseconds(5)));
  }
  EXPECT_EQ(calls, kDoors);
}

TEST(Dialer, RefusesWhoeverAnswersInAnothersName) {
  Listener listener(kLoopback);
  Dialer dialer(kAcceptorSecret, [](Socket, const Dialer::Call&) { ADD_FAILURE() << "reached"; });
  dialer.call({listener.address(), "keeper", /*rank=*/5, who("guest")});
  RunningAcceptor acceptor(listener.release());
  EXPECT_THAT(sentence_of<CommError>([&] {
                for (const auto limit = soon(); Clock::now() < limit;) {
                  dialer.step();
                  wait_ready(dialer.fd(), POLLIN, in(milliseconds(5)));
                }
              }),
              AllOf(HasSubstr("keeper 0 answers"), HasSubstr("keeper 5 should")));
}

TEST(Dialer, SaysAtOnceWhomItCanNeverReachAndWhy) {
  // Nobody answers at these, and the kernel knows it without asking the network.
  for (const char* host : {"255.255.255.255", "224.0.0.1"}) {
    Dialer dialer(kAcceptorSecret, [](Socket, const Dialer::Call&) { ADD_FAILURE() << "reached"; });
    dialer.call({{host, 4321}, "keeper", 0, who("guest")});
    const auto before = num_descriptors();
    EXPECT_THAT(sentence_of<CommError>([&] { dialer.step(); }),
                AllOf(HasSubstr(std::string("cannot connect to ") + host + ":4321"),
                      HasSubstr(std::strerror(ENETUNREACH))));
    EXPECT_EQ(num_descriptors(), before);
  }
}

TEST(Dialer, OutOfDescriptorsItCallsAgainLater) {
  Listener listener(kLoopback);
  bool reached = false;
  Dialer dialer(kAcceptorSecret, [&](Socket, const Dialer::Call&) { reached = true; });
  dialer.call({listener.address(), "keeper", 0, who("guest")});
  const auto before = num_descriptors();
  {
    const NoDescriptors none;
    const auto now = Clock::now();
    dialer.step();
    EXPECT_GT(dialer.due(), now) << "not at once, which would keep a core busy";
  }
  EXPECT_EQ(num_descriptors(), before);
  RunningAcceptor acceptor(listener.release());
  for (const auto limit = soon(); !reached && Clock::now() < limit;) {
    dialer.step();
    wait_ready(dialer.fd(), POLLIN, in(milliseconds(5)));
  }
  EXPECT_TRUE(reached);
}

}  // namespace
}  // namespace trireme::net::testing
