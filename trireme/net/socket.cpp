#include "trireme/net/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::net {

namespace {

using NameOf = int (*)(int, sockaddr*, socklen_t*);

Address address_from(const sockaddr_storage& storage, socklen_t bytes) {
  if (storage.ss_family == AF_INET || storage.ss_family == AF_INET6) {
    // getnameinfo rather than inet_ntop: it also names the interface of a link-local address.
    char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), bytes, host, sizeof host, port,
                      sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
      return {"(gone)", 0};
    return {host, static_cast<uint16_t>(core::parse_int(port).value_or(0))};
  }
  const auto& unix_name = reinterpret_cast<const sockaddr_un&>(storage);
  const size_t before_name = offsetof(sockaddr_un, sun_path) + 1;
  if (storage.ss_family != AF_UNIX || bytes <= before_name) return {"@", 0};
  return {"@" + std::string(unix_name.sun_path + 1, bytes - before_name), 0};
}

Address name_of(int fd, NameOf ask) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return {"(gone)", 0};
  return address_from(storage, bytes);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

[[noreturn]] void throw_lost(const char* doing, const Address& peer, int error) {
  throw CommError(
      fmt::format("{} {}: the connection is lost ({}); the other end has ended or its "
                  "host is out of reach",
                  doing, peer.to_string(), core::errno_text(error)));
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

void Fd::reset() {
  // No retry on EINTR: Linux has released the descriptor by then.
  if (fd_ >= 0) ::close(release());
}

std::string Address::to_string() const {
  if (host.starts_with('@') || host.starts_with('(')) return host;
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format(fmt::runtime(is_v6 ? "[{}]:{}" : "{}:{}"), host, port);
}

Address parse_address(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    throw ConfigError(fmt::format(
        "'{}' is not an address: {}; write host:port, such as 10.0.0.1:29500 or [::1]:29500", text,
        why));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse("there is no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    refuse("an IPv6 host goes in brackets");
  }
  if (host.empty()) refuse("there is no host");
  const auto port = core::parse_int(port_text);
  if (!port || *port < 0 || *port > 65535) refuse("the port is not a number from 0 to 65535");
  return {std::string(host), static_cast<uint16_t>(*port)};
}

Readiness wait_ready(int fd, short events, Deadline deadline) {
  // Waits an hour at a time, so that "for ever" needs no special case.
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(1);
  pollfd waiting{fd, events, 0};
  for (;;) {
    const auto now = Clock::now();
    const auto left = deadline <= now             ? std::chrono::nanoseconds(0)
                      : deadline - now > kLongest ? kLongest
                                                  : std::chrono::nanoseconds(deadline - now);
    const timespec timeout{static_cast<time_t>(left.count() / 1'000'000'000),
                           static_cast<long>(left.count() % 1'000'000'000)};
    const int ready = ::ppoll(&waiting, 1, &timeout, nullptr);
    if (ready > 0) return Readiness::Ready;
    if (ready < 0 && errno != EINTR)
      throw CommError(fmt::format("poll on descriptor {}: {}", fd, core::errno_text(errno)));
    if (Clock::now() >= deadline) return Readiness::DeadlinePassed;
  }
}

Socket::Socket(Fd fd) : fd_(std::move(fd)) {
  core::check(static_cast<bool>(fd_), "Socket: the descriptor is empty");
  peer_ = name_of(fd_.get(), ::getpeername);
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags >= 0 && (flags & O_NONBLOCK) == 0) ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  if (peer_.host.starts_with('@')) return;
  // Our messages are complete when they are sent; delaying them to merge packets only adds latency.
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Address Socket::local() const {
  return name_of(fd_.get(), ::getsockname);
}

void Socket::send_all(const void* data, size_t bytes, Deadline deadline) {
  const char* next = static_cast<const char*>(data);
  size_t left = bytes;
  while (left > 0) {
    const ssize_t sent = ::send(fd_.get(), next, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      next += sent;
      left -= static_cast<size_t>(sent);
    } else if (would_block(errno)) {
      if (wait_ready(fd_.get(), POLLOUT, deadline) == Readiness::DeadlinePassed)
        throw TimeoutError(fmt::format("send to {}: it took {} of {} bytes before the deadline",
                                       peer_.to_string(), bytes - left, bytes));
    } else if (errno != EINTR) {
      throw_lost("send to", peer_, errno);
    }
  }
}

size_t Socket::recv_some(void* data, size_t bytes, Deadline deadline) {
  core::check(bytes > 0, "Socket::recv_some: no room for a byte from {}", peer_.to_string());
  for (;;) {
    const ssize_t received = ::recv(fd_.get(), data, bytes, MSG_DONTWAIT);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0)
      throw CommError(fmt::format("receive from {}: it closed the connection", peer_.to_string()));
    if (would_block(errno)) {
      if (wait_ready(fd_.get(), POLLIN, deadline) == Readiness::DeadlinePassed)
        throw TimeoutError(
            fmt::format("receive from {}: nothing came before the deadline", peer_.to_string()));
    } else if (errno != EINTR) {
      throw_lost("receive from", peer_, errno);
    }
  }
}

void Socket::recv_all(void* data, size_t bytes, Deadline deadline) {
  char* next = static_cast<char*>(data);
  size_t left = bytes;
  try {
    while (left > 0) {
      const size_t received = recv_some(next, left, deadline);
      next += received;
      left -= received;
    }
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format("receive from {}: {} of {} bytes came before the deadline",
                                   peer_.to_string(), bytes - left, bytes));
  }
}

}  // namespace trireme::net
