// Strangers and traitors at the store: whatever they do, it serves the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <vector>

#include "support/net_support.h"
#include "support/sanitized.h"
#include "trireme/core/error.h"
#include "trireme/net/frame.h"
#include "trireme/net/store_protocol.h"
#include "trireme/net/store_server.h"
#include "trireme/net/tcp_store.h"

namespace trireme::net::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A server, an honest client beside the hostile ones, and the proof that it is not held up.
class Hostile : public ::testing::Test {
 protected:
  /// Says garbage, or nothing, without a proof.
  Socket stranger() { return connect(server_.address(), soon()); }
  /// Knows the secret, and misbehaves afterwards.
  Socket traitor() {
    return connect_and_prove(server_.address(), "store", secret_, rank(7), soon()).socket;
  }

  void expect_nobody_is_delayed() {
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) honest_->add("alive", 1, soon());
    connect_store(server_.address(), secret_, rank(1), soon())->set("key", "value", soon());
    EXPECT_LT(Clock::now() - start, 2s);
  }

  std::string refusal_of(const Secret& secret, const Identity& who) {
    const std::string sentence =
        sentence_of<CommError>([&] { connect_store(server_.address(), secret, who, soon()); });
    EXPECT_THAT(sentence, HasSubstr(server_.address().to_string()));
    EXPECT_EQ(sentence.find('\n'), std::string::npos);
    expect_nobody_is_delayed();
    return sentence;
  }

  Secret secret_ = Secret::random();
  StoreServer server_{kLoopback, secret_, "job-a", 8};
  std::unique_ptr<TcpStore> honest_ = connect_store(server_.address(), secret_, rank(0), soon());
};

TEST_F(Hostile, WrongSecretIsToldSo) {
  EXPECT_THAT(refusal_of(Secret::random(), rank(3)),
              AllOf(HasSubstr("secret"), HasSubstr("job id"), HasSubstr("TRIREME_SECRET")));
}

TEST_F(Hostile, StaleJobIdIsToldBoth) {
  EXPECT_THAT(refusal_of(secret_, rank(3, 8, "job-of-yesterday")),
              AllOf(HasSubstr("'job-a'"), HasSubstr("'job-of-yesterday'")));
}

TEST_F(Hostile, RankNineOfEightIsRefused) {
  EXPECT_THAT(refusal_of(secret_, rank(9)), HasSubstr("rank 9 in a world of 8"));
}

TEST_F(Hostile, AnotherWorldSizeIsRefused) {
  EXPECT_THAT(refusal_of(secret_, rank(3, 4)), AllOf(HasSubstr("of 8"), HasSubstr("of 4")));
}

TEST_F(Hostile, TheSameRankMayConnectTwice) {
  const auto first = connect_store(server_.address(), secret_, rank(3), soon());
  const auto second = connect_store(server_.address(), secret_, rank(3), soon());
  EXPECT_EQ(first->compare_and_set("rank3", "", "first", soon()), "first");
  EXPECT_EQ(second->compare_and_set("rank3", "", "second", soon()), "first");
}

TEST_F(Hostile, WithoutASecretNoCommandIsHeard) {
  // A perfectly good command, without a proof before it.
  Socket socket = stranger();
  send_frame(socket, encode({.op = StoreOp::Set, .key = "stolen", .value = "yes"}), soon());
  EXPECT_EQ(last_words(socket), "");
  EXPECT_EQ(honest_->get("stolen", soon()), std::nullopt);
}

TEST_F(Hostile, GarbageFirstBytesEndTheConnection) {
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1, '\0'),
                                     std::string(100'000, '\xff')}) {
    Socket socket = stranger();
    try {
      socket.send_all(garbage.data(), garbage.size(), soon());
    } catch (const CommError&) {
      // It may hang up before it has heard all.
    }
    EXPECT_EQ(last_words(socket), "");
  }
  expect_nobody_is_delayed();
}

TEST_F(Hostile, GarbageAfterTheProofEndsTheConnection) {
  for (const std::string& garbage : {std::string(5, '\0'), std::string(30, '\xee')}) {
    Socket socket = traitor();
    send_frame(socket, garbage, soon());
    EXPECT_EQ(last_words(socket), "");
  }
  expect_nobody_is_delayed();
}

TEST_F(Hostile, ALengthOfTwoToThe63EndsTheConnection) {
  Socket socket = traitor();
  socket.send_all("\0\0\0\0\0\0\0\x80", 8, soon());
  EXPECT_EQ(last_words(socket), "");
  Socket unproven = stranger();
  unproven.send_all("\0\0\0\0\0\0\0\x80", 8, soon());
  EXPECT_EQ(last_words(unproven), "");
  expect_nobody_is_delayed();
}

TEST_F(Hostile, AByteAtATimeIsServedAndDelaysNobody) {
  Socket socket = stranger();
  const auto trickle = [&](const std::string& bytes) {
    for (const char byte : bytes) {
      socket.send_all(&byte, 1, soon());
      honest_->add("between", 1, soon());
    }
  };
  Handshake handshake(Handshake::Side::Client, secret_, rank(7));
  while (handshake.state() == Handshake::State::Talking) {
    trickle(handshake.take_output());
    char byte = 0;
    socket.recv_all(&byte, 1, soon());
    handshake.feed({&byte, 1});
  }
  ASSERT_EQ(handshake.state(), Handshake::State::Proven) << handshake.error();
  const std::string request =
      encode({.number = 5, .op = StoreOp::Set, .key = "slow", .value = "but sure"});
  trickle(frame_header(request.size()) + request);
  EXPECT_EQ(decode_reply(recv_frame(socket, soon())).number, 5u);
  EXPECT_EQ(honest_->get("slow", soon()), "but sure");
  expect_nobody_is_delayed();
}

TEST_F(Hostile, AnnouncersOfAGigabyteCostNothing) {
  // Each announces the most that is allowed, or 1 GiB, and sends nothing.
  constexpr int kAnnouncers = 16;
  expect_nobody_is_delayed();
  std::vector<Socket> silent;
  for (int i = 0; i < kAnnouncers; ++i) silent.push_back(traitor());
  const size_t before = resident_bytes();
  for (Socket& socket : silent) {
    const std::string header = frame_header(kMaxRequestBytes);
    socket.send_all(header.data(), header.size(), soon());
  }
  Socket gigabyte = traitor();
  const std::string header = frame_header(size_t{1} << 30);
  gigabyte.send_all(header.data(), header.size(), soon());
  EXPECT_EQ(last_words(gigabyte), "");
  expect_nobody_is_delayed();
  if (!test::kSanitized) {
    EXPECT_LT(resident_bytes(), before + (size_t{1} << 20));
  }
}

TEST_F(Hostile, AClientThatNeverReadsCostsLittleAndDelaysNobody) {
  honest_->set("large", std::string(kMaxValueBytes, 'v'), soon());
  std::vector<Socket> deaf;
  for (int i = 0; i < 8; ++i) deaf.push_back(traitor());
  const size_t before = resident_bytes();
  for (Socket& socket : deaf) {
    // Asks for far more than the kernel will hold for it; stops when even asking blocks.
    const std::string request = encode({.op = StoreOp::Get, .key = "large"});
    try {
      for (int i = 0; i < 200; ++i) send_frame(socket, request, in(20ms));
    } catch (const TimeoutError&) {
    }
  }
  expect_nobody_is_delayed();
  if (!test::kSanitized) {
    EXPECT_LT(resident_bytes(), before + (size_t{1} << 20));
  }
  // One that starts to read after all gets all of it.
  for (int i = 0; i < 200; ++i)
    ASSERT_EQ(decode_reply(recv_frame(deaf[0], soon(), kMaxReplyBytes)).value.size(),
              kMaxValueBytes);
}

TEST_F(Hostile, SilentStrangersAreBoundedInNumberOldestFirst) {
  // 256 and one for each of the 8 ranks; one more, and the first has to go.
  const auto start = Clock::now();
  std::vector<Socket> silent;
  for (int i = 0; i < 256 + 8 + 1; ++i) silent.push_back(stranger());
  EXPECT_EQ(last_words(silent.front()), "");
  EXPECT_LT(Clock::now() - start, 4s) << "it went for its silence, not to make room";
  pollfd last{silent.back().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&last, 1, 0), 0) << "the youngest must still be there";
  expect_nobody_is_delayed();
}

TEST_F(Hostile, AStrangerWhoStaysSilentIsDroppedAfterSeconds) {
  Socket socket = stranger();
  socket.send_all("TRIREME", 7, soon());
  const auto start = Clock::now();
  EXPECT_EQ(last_words(socket), "");
  EXPECT_GT(Clock::now() - start, 1s);
  EXPECT_LT(Clock::now() - start, 10s);
  expect_nobody_is_delayed();
}

TEST_F(Hostile, AClientThatDiesWhileItWaitsIsForgotten) {
  for (int i = 0; i < 20; ++i) {
    Socket socket = traitor();
    send_frame(socket, encode({.op = StoreOp::Wait, .key = "awaited"}), soon());
  }
  honest_->set("awaited", "value", soon());
  expect_nobody_is_delayed();
}

TEST(HostileServer, ThatIsNotOfTriremeIsNamed) {
  Listener listener(kLoopback);
  auto answered = std::async(std::launch::async, [&] {
    Socket socket = listener.accept(soon());
    socket.send_all("HTTP/1.1 400 Bad Request", 24, soon());
    return socket;
  });
  EXPECT_THAT(sentence_of<CommError>(
                  [&] { connect_store(listener.address(), Secret::random(), rank(0), soon()); }),
              AllOf(HasSubstr(listener.address().to_string()), HasSubstr("does not speak trireme"),
                    HasSubstr("HTTP")));
  answered.get();
}

TEST(HostileWorld, APortInUseIsSaidWithARemedy) {
  Listener listener(kLoopback);
  EXPECT_THAT(sentence_of<CommError>(
                  [&] { StoreServer(listener.address(), Secret::random(), "job-a", 8); }),
              AllOf(HasSubstr("cannot listen on " + listener.address().to_string()),
                    HasSubstr("Address already in use; choose another port")));
  EXPECT_THAT(sentence_of<CommError>([&] {
                Listener({"192.0.2.1", 0});
              }),
              AllOf(HasSubstr("192.0.2.1"), HasSubstr("no such address")));
}

TEST(HostileWorld, AnUnresolvableMasterIsSaidAtOnce) {
  const auto start = Clock::now();
  EXPECT_THAT(sentence_of<CommError>([&] {
                connect_store({"no-such-host.invalid", 29500}, Secret::random(), rank(0), in(60s));
              }),
              AllOf(HasSubstr("cannot resolve"), HasSubstr("'no-such-host.invalid'")));
  EXPECT_LT(Clock::now() - start, 30s) << "it must not be tried again until the deadline";
}

}  // namespace
}  // namespace trireme::net::testing
