#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/support/net_support.h"
#include "trireme/core/error.h"
#include "trireme/net/frame.h"
#include "trireme/net/socket.h"

namespace trireme::net::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string unique_name(const char* what) {
  static std::atomic<int> count = 0;
  return "trireme_test_" + std::to_string(::getpid()) + what + std::to_string(count++);
}

TEST(Address, ReadsWhatItWrites) {
  for (const char* text : {"127.0.0.1:80", "[::1]:29500", "some.host:0", "h:65535"})
    EXPECT_EQ(parse_address(text).to_string(), text);
  EXPECT_EQ(parse_address("[::1]:29500").host, "::1");
}

TEST(Address, RefusesWhatIsNone) {
  for (const char* text : {"", "host", "host:", ":80", "host:65536", "host:-1", "host:8x", "::1:80",
                           "[]:80", "[::1]", "host:1:2"}) {
    const std::string sentence = sentence_of<ConfigError>([&] { parse_address(text); });
    EXPECT_THAT(sentence, HasSubstr(std::string("'") + text + "'")) << text;
  }
}

TEST(Fd, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  Fd moved = std::move(writer);
  EXPECT_FALSE(writer);
  moved.reset();
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0) << "the other end must be closed";
}

TEST(Socket, CarriesManyBytesBothWaysAtOnce) {
  auto [a, b] = tcp_pair();
  const auto pattern = [](unsigned seed) {
    std::string bytes(3 << 20, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 257 + seed);
    return bytes;
  };
  const std::string from_a = pattern(1), from_b = pattern(2);
  std::string at_a(from_b.size(), '\0'), at_b(from_a.size(), '\0');
  std::vector<std::thread> threads;
  threads.emplace_back([&] { a.send_all(from_a.data(), from_a.size(), soon()); });
  threads.emplace_back([&] { b.send_all(from_b.data(), from_b.size(), soon()); });
  threads.emplace_back([&] { a.recv_all(at_a.data(), at_a.size(), soon()); });
  threads.emplace_back([&] { b.recv_all(at_b.data(), at_b.size(), soon()); });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(at_b == from_a);
  EXPECT_TRUE(at_a == from_b);
}

TEST(Socket, KnowsBothEndsAndSendsAtOnce) {
  Listener listener(kLoopback);
  EXPECT_NE(listener.address().port, 0);
  Socket client = connect(listener.address(), soon());
  Socket server = listener.accept(soon());
  EXPECT_EQ(client.peer(), listener.address());
  EXPECT_EQ(server.peer(), client.local());
  for (const int fd : {client.fd(), server.fd()}) {
    int no_delay = 0;
    socklen_t bytes = sizeof no_delay;
    ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &bytes), 0);
    EXPECT_NE(no_delay, 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  }
}

/// "fe80::1%eth0", of an interface that is up; nothing where there is none.
std::string link_local_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET6) continue;
    if (!IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr))
      continue;
    char host[NI_MAXHOST] = {};
    if (::getnameinfo(one->ifa_addr, sizeof(sockaddr_in6), host, sizeof host, nullptr, 0,
                      NI_NUMERICHOST) == 0)
      found = host;
  }
  ::freeifaddrs(all);
  return found;
}

TEST(Socket, KeepsTheInterfaceOfALinkLocalAddress) {
  const std::string host = link_local_address();
  if (host.empty()) GTEST_SKIP() << "no interface has a link-local address";
  Listener listener({host, 0});
  EXPECT_EQ(listener.address().host, host);
  Socket client = connect(parse_address(listener.address().to_string()), soon());
  Socket server = listener.accept(soon());
  EXPECT_EQ(server.peer(), client.local());
}

TEST(Socket, NamesThePeerThatClosed) {
  auto [a, b] = tcp_pair();
  const std::string peer = a.peer().to_string();
  b = Socket();
  char byte = 0;
  EXPECT_THAT(sentence_of<CommError>([&] { a.recv_all(&byte, 1, soon()); }),
              AllOf(HasSubstr(peer), HasSubstr("closed")));
  // Not SIGPIPE either, however often one writes.
  const std::string much(1 << 20, 'x');
  EXPECT_THAT(sentence_of<CommError>([&] {
                for (int i = 0; i < 100; ++i) a.send_all(much.data(), much.size(), soon());
              }),
              HasSubstr(peer));
}

TEST(Socket, KeepsItsDeadlines) {
  auto [a, b] = tcp_pair();
  const auto start = Clock::now();
  std::string much(64 << 20, 'x');
  EXPECT_THAT(sentence_of<TimeoutError>([&] { a.recv_all(much.data(), 10, in(milliseconds(20))); }),
              HasSubstr("0 of 10 bytes"));
  EXPECT_THAT(sentence_of<TimeoutError>(
                  [&] { a.send_all(much.data(), much.size(), in(milliseconds(20))); }),
              HasSubstr(a.peer().to_string()));
  EXPECT_GE(Clock::now() - start, milliseconds(40));
  EXPECT_LT(Clock::now() - start, milliseconds(5000));
  Listener listener(kLoopback);
  EXPECT_THAT(sentence_of<TimeoutError>([&] { listener.accept(in(milliseconds(10))); }),
              HasSubstr(listener.address().to_string()));
}

TEST(Socket, ReadsWhatIsThereEvenPastTheDeadline) {
  auto [a, b] = socket_pair();
  b.send_all("x", 1, soon());
  char byte = 0;
  a.recv_all(&byte, 1, Clock::now() - milliseconds(1));
  EXPECT_EQ(byte, 'x');
}

TEST(Connect, WaitsForTheListenerToComeUp) {
  uint16_t port = 0;
  { port = Listener(kLoopback).address().port; }
  auto connected = std::async(std::launch::async, [&] {
    return connect({"127.0.0.1", port}, soon()).peer().port;
  });
  EXPECT_EQ(connected.wait_for(milliseconds(30)), std::future_status::timeout);
  Listener listener({"127.0.0.1", port});
  Socket server = listener.accept(soon());
  EXPECT_EQ(connected.get(), port);
}

TEST(Connect, GivesUpAtTheDeadlineWhenNobodyListens) {
  const Address nobody = Listener(kLoopback).address();
  const auto start = Clock::now();
  EXPECT_THAT(sentence_of<TimeoutError>([&] { connect(nobody, in(milliseconds(30))); }),
              AllOf(HasSubstr(nobody.to_string()), HasSubstr("refused")));
  EXPECT_GE(Clock::now() - start, milliseconds(30));
  EXPECT_LT(Clock::now() - start, milliseconds(3000));
}

TEST(UnixSocket, ConnectsByNameBeforeAndAfterListening) {
  const std::string name = unique_name("connect");
  auto early = std::async(std::launch::async, [&] { return connect_unix_abstract(name, soon()); });
  EXPECT_EQ(early.wait_for(milliseconds(10)), std::future_status::timeout);
  const Fd listening = listen_unix_abstract(name);
  Socket server = accept_from(listening.get(), soon());
  Socket client = early.get();
  EXPECT_EQ(client.peer().to_string(), "@" + name);
  client.send_all("hi", 2, soon());
  char text[2];
  server.recv_all(text, 2, soon());
  EXPECT_EQ(std::string(text, 2), "hi");
  EXPECT_THAT(sentence_of<CommError>([&] { listen_unix_abstract(name); }),
              AllOf(HasSubstr(name), HasSubstr("in use")));
  EXPECT_THAT(sentence_of<TimeoutError>(
                  [&] { connect_unix_abstract(unique_name("none"), in(milliseconds(10))); }),
              HasSubstr("trireme_test"));
}

TEST(UnixSocket, PassesADescriptor) {
  auto [a, b] = socket_pair();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  send_fd(a.fd(), writer.get(), soon());
  writer.reset();
  Fd passed = recv_fd(b.fd(), soon());
  EXPECT_NE(::fcntl(passed.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(passed.get(), "p", 1), 1);
  char byte = 0;
  ASSERT_EQ(::read(reader.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'p');
}

TEST(UnixSocket, SaysWhenNoDescriptorComes) {
  auto [a, b] = socket_pair();
  sentence_of<TimeoutError>([&, &end = b] { recv_fd(end.fd(), in(milliseconds(10))); });
  a.send_all("x", 1, soon());
  EXPECT_THAT(sentence_of<CommError>([&, &end = b] { recv_fd(end.fd(), soon()); }),
              HasSubstr("exactly one descriptor"));
  a = Socket();
  EXPECT_THAT(sentence_of<CommError>([&, &end = b] { recv_fd(end.fd(), soon()); }),
              HasSubstr("closed"));
}

TEST(Frame, KeepsFramesApart) {
  auto [a, b] = socket_pair();
  const std::string large(100'000, 'z');
  auto sent = std::async(std::launch::async, [&, &end = a] {
    for (const std::string& frame : {std::string("one"), std::string(), large, std::string("four")})
      send_frame(end, frame, soon());
  });
  EXPECT_EQ(recv_frame(b, soon()), "one");
  EXPECT_EQ(recv_frame(b, soon()), "");
  EXPECT_TRUE(recv_frame(b, soon()) == large);
  EXPECT_EQ(recv_frame(b, soon()), "four");
  sent.get();
}

TEST(Frame, RefusesALengthOverTheLimit) {
  auto [a, b] = socket_pair();
  send_frame(a, std::string(10, 'x'), soon());
  EXPECT_EQ(recv_frame(b, soon(), 10).size(), 10u);
  send_frame(a, std::string(11, 'x'), soon());
  EXPECT_THAT(sentence_of<CommError>([&, &end = b] { recv_frame(end, soon(), 10); }),
              AllOf(HasSubstr("11 bytes"), HasSubstr("limit is 10")));
  auto [c, d] = socket_pair();
  c.send_all("\0\0\0\0\0\0\0\x80", 8, soon());
  EXPECT_THAT(sentence_of<CommError>([&, &end = d] { recv_frame(end, soon()); }),
              HasSubstr("9223372036854775808 bytes"));
}

}  // namespace
}  // namespace trireme::net::testing
