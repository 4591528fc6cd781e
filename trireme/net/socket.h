#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::net {

using Clock = std::chrono::steady_clock;
/// The moment by which a call must end. Every call that can wait takes one;
/// Deadline::max() waits for ever.
using Deadline = Clock::time_point;

/// An owned file descriptor; the destructor closes it.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  /// Gives up the descriptor without closing it.
  int release() { return std::exchange(fd_, -1); }
  void reset();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A host (a name or a number) and a port. A unix socket is its name with an @ in front, port 0.
struct Address {
  std::string host = {};
  uint16_t port = 0;

  /// "10.0.0.1:80", "[::1]:80", "@name".
  std::string to_string() const;
  bool operator==(const Address&) const = default;
};

/// Reads "host:port" or "[v6]:port". Throws ConfigError that shows the text.
Address parse_address(std::string_view text);

/// A connected stream, tcp or unix. The descriptor is non-blocking, closed on exec; each call waits
/// until it is done or the deadline has passed. A closed or reset connection is a CommError and a
/// missed deadline a TimeoutError; both name the peer. The stream is then unusable, since part of
/// the data may have been sent. One thread may send while another receives.
class Socket {
 public:
  Socket() = default;
  /// Takes over a connected stream and makes it non-blocking.
  explicit Socket(Fd fd);

  void send_all(const void* data, size_t bytes, Deadline deadline);
  void recv_all(void* data, size_t bytes, Deadline deadline);
  /// Reads what has arrived: at least one byte, at most `bytes`. A TimeoutError loses nothing.
  size_t recv_some(void* data, size_t bytes, Deadline deadline);

  int fd() const { return fd_.get(); }
  Fd release() { return std::move(fd_); }
  Address local() const;
  /// The address of the other end when the connection was made.
  Address peer() const { return peer_; }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  Fd fd_;
  Address peer_;
};

/// A listening tcp socket. Binds exactly the given address; with port 0 the kernel picks one.
class Listener {
 public:
  /// Throws CommError: "cannot listen on 127.0.0.1:80: Address already in use; ..." and a remedy.
  explicit Listener(const Address& address);

  /// The bound address, with the real port.
  Address address() const { return address_; }
  int fd() const { return fd_.get(); }
  Fd release() { return std::move(fd_); }
  Socket accept(Deadline deadline);

 private:
  Fd fd_;
  Address address_;
};

/// Connects, and retries (after 2 ms, growing to 50 ms) while nobody listens there yet. A host that
/// cannot be resolved is a CommError at once.
Socket connect(const Address& address, Deadline deadline);

/// Begins to connect to a numeric address, or to a unix socket ("@name"), and returns at once. The
/// descriptor becomes writable when the attempt has ended; SO_ERROR has the result. Returns an
/// empty Fd if the attempt cannot begin now but may later. Throws CommError if retrying cannot
/// help.
Fd start_connect(const Address& address);

/// `connect` over a unix socket in Linux' abstract namespace, which leaves no file behind. It has
/// no file permissions either: any user of this machine can connect, so authenticate.
enum class IfAbsent : uint8_t { Wait, Fail };
Socket connect_unix_abstract(const std::string& name, Deadline deadline,
                             IfAbsent if_absent = IfAbsent::Wait);
Fd start_connect_unix(const std::string& name);
Fd listen_unix_abstract(const std::string& name);
/// The next connection of a listening descriptor, tcp or unix.
Socket accept_from(int listening_fd, Deadline deadline);

/// Passes an open descriptor over a unix socket (SCM_RIGHTS, with one byte of data). The receiver
/// gets its own copy, closed on exec.
void send_fd(int socket, int fd_to_pass, Deadline deadline);
Fd recv_fd(int socket, Deadline deadline);

/// Waits until poll() reports one of `events` (or an error) on `fd`.
enum class Readiness { Ready, DeadlinePassed };
Readiness wait_ready(int fd, short events, Deadline deadline);

}  // namespace trireme::net
