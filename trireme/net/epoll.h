#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <span>

#include "trireme/net/socket.h"

namespace trireme::net {

/// A set of descriptors to wait on. Events carry the id of their descriptor.
class Epoll {
 public:
  Epoll();

  /// The set itself can be waited on: it is readable while one of its descriptors is ready.
  int fd() const { return fd_.get(); }

  void add(int fd, uint32_t events, uint64_t id);
  void change(int fd, uint32_t events, uint64_t id);
  void remove(int fd) noexcept;

  /// Returns the events that have happened; if there are none, waits until the deadline for one.
  std::span<epoll_event> wait(std::span<epoll_event> events, Deadline deadline) const;

 private:
  void control(int operation, int fd, uint32_t events, uint64_t id);
  Fd fd_;
};

}  // namespace trireme::net
