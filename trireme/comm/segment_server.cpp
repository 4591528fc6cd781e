#include "trireme/comm/segment_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "trireme/core/error.h"
#include "trireme/net/frame.h"

namespace trireme::comm {

namespace {

constexpr char kHere = 'h', kProblem = 'p';
constexpr uint64_t kWakeId = 0, kDoorId = 1, kFirstAsker = 2;
/// An answer is a few bytes, and the connection is fresh: there is always room for it.
constexpr auto kAnswerTime = std::chrono::milliseconds(100);

}  // namespace

SegmentServer::SegmentServer(net::Fd listener, net::Secret secret, net::Identity me)
    : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_number_(kFirstAsker),
      door_(std::move(listener),
            {.secret = std::move(secret),
             .me = std::move(me),
             .roles = {"rank"},
             .users = net::Door::Options::Users::Same},
            [this](net::Socket socket, const net::Identity&) { welcome(std::move(socket)); }) {
  epoll_.add(wake_.get(), EPOLLIN, kWakeId);
  epoll_.add(door_.fd(), EPOLLIN, kDoorId);
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

SegmentServer::~SegmentServer() {
  thread_.request_stop();
  wake();
}

void SegmentServer::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void SegmentServer::put(uint64_t id, net::Fd fd, int takers) {
  if (takers == 0) return;
  {
    const std::lock_guard lock(mutex_);
    items_[id] = {std::move(fd), takers, {}};
  }
  wake();
}

void SegmentServer::put_problem(uint64_t id, std::string problem) {
  {
    const std::lock_guard lock(mutex_);
    items_[id] = {net::Fd(), 1 << 20, std::move(problem)};
  }
  wake();
}

void SegmentServer::run(std::stop_token stop) {
  std::array<epoll_event, 64> events;
  while (!stop.stop_requested()) {
    for (const epoll_event& event : epoll_.wait(events, door_.due())) {
      if (event.data.u64 == kWakeId) {
        uint64_t count = 0;
        [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
        answer_all();
      } else if (event.data.u64 != kDoorId) {
        on_event(event.data.u64);
      }
    }
    door_.step();
  }
}

void SegmentServer::welcome(net::Socket socket) {
  const uint64_t number = next_number_++;
  epoll_.add(socket.fd(), EPOLLIN, number);
  askers_[number].socket = std::move(socket);
}

/// A rank says which segment it wants, or has gone.
void SegmentServer::on_event(uint64_t number) {
  const auto found = askers_.find(number);
  if (found == askers_.end()) return;
  Asker& asker = found->second;
  // One byte more than the id: what comes after it is the end of the connection, or nonsense.
  std::array<char, sizeof asker.id + 1> bytes;
  const std::size_t room = bytes.size() - asker.id_bytes;
  const ssize_t got = ::recv(asker.socket.fd(), bytes.data(), room, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const auto total = asker.id_bytes + static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  if (got <= 0 || total > sizeof asker.id) {
    askers_.erase(found);
    return;
  }
  std::copy_n(bytes.data(), got, reinterpret_cast<char*>(&asker.id) + asker.id_bytes);
  asker.id_bytes = total;
  const std::lock_guard lock(mutex_);
  if (answer(asker)) askers_.erase(found);
}

void SegmentServer::answer_all() {
  const std::lock_guard lock(mutex_);
  for (auto asker = askers_.begin(); asker != askers_.end();)
    asker = answer(asker->second) ? askers_.erase(asker) : std::next(asker);
}

/// True: this one has been answered, or cannot be.
bool SegmentServer::answer(Asker& asker) {
  if (asker.id_bytes < sizeof asker.id) return false;
  const auto found = items_.find(asker.id);
  if (found == items_.end()) return false;
  Item& item = found->second;
  const auto deadline = net::Clock::now() + kAnswerTime;
  try {
    asker.socket.send_all(item.fd ? &kHere : &kProblem, 1, deadline);
    if (!item.fd)
      net::send_frame(asker.socket, item.problem, deadline);
    else
      net::send_fd(asker.socket.fd(), item.fd.get(), deadline);
    if (--item.takers == 0) items_.erase(found);
  } catch (const std::exception&) {  // it has gone, and says so itself if it comes again
  }
  return true;
}

net::Fd fetch_segment(const std::string& name, uint64_t id, const net::Secret& secret,
                      const net::Identity& me, net::Deadline deadline) {
  net::Socket owner =
      net::connect_and_prove({"@" + name, 0}, "segments", secret, me, deadline).socket;
  owner.send_all(&id, sizeof id, deadline);
  char answer = 0;
  owner.recv_all(&answer, 1, deadline);
  if (answer == kHere) return net::recv_fd(owner.fd(), deadline);
  throw CommError(net::recv_frame(owner, deadline));
}

}  // namespace trireme::comm
