#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>
#include <future>
#include <string>
#include <utility>

#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"

namespace trireme::net::testing {

inline Deadline in(Clock::duration time) {
  return Clock::now() + time;
}
/// Long enough that only a hang gets there.
inline Deadline soon() {
  return in(std::chrono::seconds(20));
}

inline const Address kLoopback{"127.0.0.1", 0};

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

/// The sentence of the error of type E that the body throws; "" (and a failure) if it does not.
template <class E, class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// A folder of its own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme_net_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw "mkdtemp failed";
    path_ = name;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

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
