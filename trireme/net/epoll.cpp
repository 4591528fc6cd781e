#include "trireme/net/epoll.h"

#include <algorithm>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::net {

Epoll::Epoll() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw CommError(fmt::format("epoll_create: {}", core::errno_text(errno)));
}

void Epoll::add(int fd, uint32_t events, uint64_t id) {
  control(EPOLL_CTL_ADD, fd, events, id);
}

void Epoll::change(int fd, uint32_t events, uint64_t id) {
  control(EPOLL_CTL_MOD, fd, events, id);
}

void Epoll::remove(int fd) noexcept {
  ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Epoll::control(int operation, int fd, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(fd_.get(), operation, fd, &event) != 0)
    throw CommError(fmt::format("epoll_ctl: {}", core::errno_text(errno)));
}

std::span<epoll_event> Epoll::wait(std::span<epoll_event> events, Deadline deadline) const {
  constexpr auto kLongest = std::chrono::hours(1);
  const auto now = Clock::now();
  int timeout_ms = 0;
  if (deadline > now) {
    const auto left = deadline - now > kLongest ? kLongest : deadline - now;
    timeout_ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
  }
  const int count =
      ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  return events.first(static_cast<size_t>(std::max(0, count)));
}

}  // namespace trireme::net
