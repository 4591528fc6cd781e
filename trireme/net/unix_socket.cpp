#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "trireme/core/error.h"
#include "trireme/net/retry.h"
#include "trireme/net/socket.h"

namespace trireme::net {

namespace {

struct UnixName {
  sockaddr_un address{};
  socklen_t bytes = 0;

  explicit UnixName(const std::string& name) {
    // The abstract namespace: the path begins with a zero byte.
    const size_t room = sizeof address.sun_path - 1;
    core::check(!name.empty() && name.size() <= room,
                "unix socket name '{}' has {} bytes; it may have 1 to {}", name, name.size(), room);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Fd make_unix_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw CommError(fmt::format("cannot make a unix socket: {}", core::errno_text(errno)));
  return fd;
}

/// One byte of data and room for one descriptor, as sendmsg and recvmsg want them.
struct FdMessage {
  char byte = 'F';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  FdMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  FdMessage(const FdMessage&) = delete;
};

Fd fd_in(FdMessage& message) {
  Fd passed;
  cmsghdr* part = CMSG_FIRSTHDR(&message.header);
  if (part != nullptr && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
    passed = Fd(fd);
  }
  if (!passed || (message.header.msg_flags & MSG_CTRUNC) != 0)
    throw CommError(
        "recv_fd: the message does not hold exactly one descriptor; either the peer sent something "
        "else or this process has too many open files (see `ulimit -n`)");
  return passed;
}

}  // namespace

Fd listen_unix_abstract(const std::string& name) {
  const UnixName unix_name(name);
  Fd fd = make_unix_socket();
  if (::bind(fd.get(), unix_name.get(), unix_name.bytes) != 0 || ::listen(fd.get(), SOMAXCONN) != 0)
    throw CommError(fmt::format("cannot listen on @{}: {}; another process has that name", name,
                                core::errno_text(errno)));
  return fd;
}

Socket connect_unix_abstract(const std::string& name, Deadline deadline, IfAbsent if_absent) {
  const UnixName unix_name(name);
  for (Backoff backoff(std::chrono::milliseconds(2), std::chrono::milliseconds(50));;) {
    Fd fd = make_unix_socket();
    if (::connect(fd.get(), unix_name.get(), unix_name.bytes) == 0) return Socket(std::move(fd));
    const int error = errno;
    // EAGAIN: the listener's queue is full.
    const bool may_come_up =
        (error == ECONNREFUSED && if_absent == IfAbsent::Wait) || error == EAGAIN || error == EINTR;
    if (!may_come_up)
      throw CommError(fmt::format("cannot connect to @{}: {}", name, core::errno_text(error)));
    if (backoff.sleep(deadline) == Readiness::DeadlinePassed)
      throw TimeoutError(fmt::format("cannot connect to @{} before the deadline: {}", name,
                                     core::errno_text(error)));
  }
}

Fd start_connect_unix(const std::string& name) {
  const UnixName unix_name(name);
  Fd fd = make_unix_socket();
  if (::connect(fd.get(), unix_name.get(), unix_name.bytes) == 0) return fd;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  throw CommError(fmt::format("cannot connect to @{}: {}", name, core::errno_text(errno)));
}

void send_fd(int socket, int fd_to_pass, Deadline deadline) {
  FdMessage message;
  cmsghdr* part = CMSG_FIRSTHDR(&message.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &fd_to_pass, sizeof fd_to_pass);
  for (;;) {
    if (::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) return;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      throw CommError(
          fmt::format("send_fd: cannot pass a descriptor: {}", core::errno_text(errno)));
    if (wait_ready(socket, POLLOUT, deadline) == Readiness::DeadlinePassed)
      throw TimeoutError("send_fd: the peer did not take the descriptor before the deadline");
  }
}

Fd recv_fd(int socket, Deadline deadline) {
  for (;;) {
    FdMessage message;
    const ssize_t received = ::recvmsg(socket, &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received == 1) return fd_in(message);
    if (received == 0) throw CommError("recv_fd: the peer closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      throw CommError(fmt::format("recv_fd: {}", core::errno_text(errno)));
    if (wait_ready(socket, POLLIN, deadline) == Readiness::DeadlinePassed)
      throw TimeoutError("recv_fd: no descriptor came before the deadline");
  }
}

}  // namespace trireme::net
