#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <utility>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"

namespace trireme::net::testing {

using test::Scratch;
using test::sentence_of;

inline Deadline in(Clock::duration time) {
  return Clock::now() + time;
}
/// Long enough that only a hang gets there.
inline Deadline soon() {
  return in(std::chrono::seconds(20));
}

constexpr int kRanks = 8;
inline Identity rank(int r, int size = kRanks, const char* job = "job-a") {
  return {.job = job, .role = "rank", .rank = r, .size = size};
}

inline const Address kLoopback{"127.0.0.1", 0};

/// Memory of this process that is in use.
inline size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(::getpagesize());
}

/// Two connected ends.
inline std::pair<Socket, Socket> socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw "socketpair failed";
  return {Socket(Fd(fds[0])), Socket(Fd(fds[1]))};
}

inline std::pair<Socket, Socket> tcp_pair() {
  Listener listener(kLoopback);
  Socket client = connect(listener.address(), soon());
  return {std::move(client), listener.accept(soon())};
}

/// What the other end says until it hangs up; that it does not is a failure of the test.
inline std::string last_words(Socket& socket) {
  std::string words;
  char byte = 0;
  try {
    for (;;) words.append(&byte, socket.recv_some(&byte, 1, soon()));
  } catch (const TimeoutError&) {
    ADD_FAILURE() << "the other end did not hang up";
  } catch (const CommError&) {
  }
  return words;
}

/// An environment variable for the time of a test.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* before = ::getenv(name)) before_ = before;
    if (value != nullptr)
      ::setenv(name, value, 1);
    else
      ::unsetenv(name);
  }
  ~ScopedEnv() {
    if (before_.empty())
      ::unsetenv(name_);
    else
      ::setenv(name_, before_.c_str(), 1);
  }

 private:
  const char* name_;
  std::string before_;
};

}  // namespace trireme::net::testing
