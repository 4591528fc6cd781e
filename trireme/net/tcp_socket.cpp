#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/net/retry.h"
#include "trireme/net/socket.h"

namespace trireme::net {

namespace {

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct Resolution {
  int error = 0;
  int system_error = 0;
  std::vector<Endpoint> endpoints;
};

Resolution look_up(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  Resolution resolved;
  const std::string port = std::to_string(address.port);
  resolved.error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
  resolved.system_error = errno;
  if (resolved.error != 0) return resolved;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    Endpoint endpoint;
    std::memcpy(&endpoint.storage, info->ai_addr, info->ai_addrlen);
    endpoint.bytes = info->ai_addrlen;
    resolved.endpoints.push_back(endpoint);
  }
  ::freeaddrinfo(list);
  return resolved;
}

/// Looks up names on a separate thread: getaddrinfo has no deadline and may take half a minute if
/// the name server does not answer. A numeric address needs no lookup.
std::vector<Endpoint> resolve(const Address& address, Deadline deadline) {
  Resolution resolved = look_up(address, AI_NUMERICHOST | AI_NUMERICSERV);
  if (resolved.error != 0) {
    auto promise = std::make_shared<std::promise<Resolution>>();
    std::future<Resolution> answer = promise->get_future();
    std::thread([promise, address] {
      promise->set_value(look_up(address, AI_NUMERICSERV));
    }).detach();
    // Waits in slices, since wait_until(max) overflows in libstdc++.
    while (answer.wait_until(std::min(deadline, Clock::now() + std::chrono::minutes(1))) !=
           std::future_status::ready) {
      if (Clock::now() >= deadline)
        throw TimeoutError(fmt::format(
            "cannot resolve host '{}' before the deadline: the name server does not answer; check "
            "the name or use a numeric address",
            address.host));
    }
    resolved = answer.get();
  }
  if (resolved.error == 0) return resolved.endpoints;
  const std::string why = resolved.error == EAI_SYSTEM ? core::errno_text(resolved.system_error)
                                                       : ::gai_strerror(resolved.error);
  throw CommError(fmt::format("cannot resolve host '{}': {}; check the spelling of the address {}",
                              address.host, why, address.to_string()));
}

const char* remedy_of(int error) {
  if (error == EADDRINUSE) return "choose another port (MASTER_PORT, --master-port)";
  if (error == EADDRNOTAVAIL) return "this machine has no such address, see `ip address`";
  if (error == EACCES) return "ports below 1024 need privileges, choose a higher one";
  return "choose another address";
}

[[noreturn]] void throw_cannot_listen(const Address& address, int error) {
  throw CommError(fmt::format("cannot listen on {}: {}; {}", address.to_string(),
                              core::errno_text(error), remedy_of(error)));
}

/// If nobody listens on a local port and the kernel picks that very port for our end, connect()
/// connects the socket to itself. The socket is then closed with a reset, so that the port is free
/// when the real listener starts.
bool is_connected_to_itself(const Socket& socket) {
  if (socket.local() != socket.peer()) return false;
  const linger reset{1, 0};
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return true;
}

/// Tries once. Returns the errno, or 0 when connected.
int try_connect(const Endpoint& endpoint, Deadline deadline, Socket& connected) {
  Fd fd(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  if (::connect(fd.get(), endpoint.get(), endpoint.bytes) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    if (wait_ready(fd.get(), POLLOUT, deadline) == Readiness::DeadlinePassed) return ETIMEDOUT;
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
    if (error != 0) return error;
  }
  Socket socket(std::move(fd));
  if (is_connected_to_itself(socket)) return ECONNREFUSED;
  connected = std::move(socket);
  return 0;
}

/// Tries each endpoint once; a silent one must not use up the time of the next ones.
int try_each(const std::vector<Endpoint>& endpoints, Deadline deadline, Socket& connected) {
  int error = EADDRNOTAVAIL;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const auto now = Clock::now();
    const bool is_last = i + 1 == endpoints.size();
    const Deadline share = is_last || deadline <= now
                               ? deadline
                               : now + (deadline - now) / static_cast<int>(endpoints.size() - i);
    const int this_error = try_connect(endpoints[i], share, connected);
    if (this_error == 0) return 0;
    // "Refused" means that the host is up, so it is a better error than that of another family.
    if (error != ECONNREFUSED) error = this_error;
  }
  return error;
}

bool may_come_up(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT;
}

}  // namespace

Listener::Listener(const Address& address) {
  const auto within = Clock::now() + std::chrono::seconds(10);
  const Endpoint endpoint = resolve(address, within).front();
  fd_ = Fd(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_) throw_cannot_listen(address, errno);
  // Allows a port with connections in TIME_WAIT, but not one that another process listens on.
  const int on = 1;
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd_.get(), endpoint.get(), endpoint.bytes) != 0) throw_cannot_listen(address, errno);
  if (::listen(fd_.get(), SOMAXCONN) != 0) throw_cannot_listen(address, errno);
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound), &bytes);
  const in_port_t port = bound.ss_family == AF_INET6
                             ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                             : reinterpret_cast<sockaddr_in&>(bound).sin_port;
  address_ = {address.host, ntohs(port)};
}

Socket Listener::accept(Deadline deadline) {
  try {
    return accept_from(fd_.get(), deadline);
  } catch (const TimeoutError&) {
    throw TimeoutError(
        fmt::format("accept on {}: nobody connected before the deadline", address_.to_string()));
  }
}

Socket accept_from(int listening_fd, Deadline deadline) {
  for (;;) {
    Fd fd(::accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) return Socket(std::move(fd));
    // accept() also reports errors of connections that are already gone: ignore those.
    const bool is_ours = errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                         errno == ENOMEM || errno == EBADF || errno == EINVAL ||
                         errno == ENOTSOCK || errno == EOPNOTSUPP;
    if (is_ours) throw CommError(fmt::format("accept: {}", core::errno_text(errno)));
    if (errno != EAGAIN && errno != EWOULDBLOCK) continue;
    if (wait_ready(listening_fd, POLLIN, deadline) == Readiness::DeadlinePassed)
      throw TimeoutError("accept: nobody connected before the deadline");
  }
}

Socket connect(const Address& address, Deadline deadline) {
  const std::vector<Endpoint> endpoints = resolve(address, deadline);
  Socket connected;
  for (Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(50));;) {
    const int error = try_each(endpoints, deadline, connected);
    if (error == 0) return connected;
    if (!may_come_up(error))
      throw CommError(fmt::format("cannot connect to {}: {}; check the address and the network",
                                  address.to_string(), core::errno_text(error)));
    if (backoff.sleep(deadline) == Readiness::DeadlinePassed)
      throw TimeoutError(
          fmt::format("cannot connect to {} before the deadline: {}; nobody listens "
                      "there, or a firewall is in the way",
                      address.to_string(), core::errno_text(error)));
  }
}

Fd start_connect(const Address& address) {
  if (address.host.starts_with('@')) return start_connect_unix(address.host.substr(1));
  const Resolution resolved = look_up(address, AI_NUMERICHOST | AI_NUMERICSERV);
  core::check(resolved.error == 0, "start_connect: {} is not a numeric address",
              address.to_string());
  const Endpoint& endpoint = resolved.endpoints.front();
  Fd fd(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS)) return fd;
  if (fd && (::connect(fd.get(), endpoint.get(), endpoint.bytes) == 0 || errno == EINPROGRESS ||
             errno == EINTR))
    return fd;
  if (!may_come_up(errno))
    throw CommError(fmt::format("cannot connect to {}: {}; check the address and the network",
                                address.to_string(), core::errno_text(errno)));
  return {};
}

}  // namespace trireme::net
