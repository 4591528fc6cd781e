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
constexpr uint64_t kWakeId = 0, kAcceptorId = 1, kFirstClient = 2;
/// An answer is a few bytes, and the connection is fresh: there is always room for it.
constexpr auto kAnswerTime = std::chrono::milliseconds(100);

}  // namespace

SegmentServer::SegmentServer(net::Fd listener, net::Secret secret, net::Identity me)
    : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_number_(kFirstClient),
      acceptor_(std::move(listener),
                {.secret = std::move(secret),
                 .me = std::move(me),
                 .roles = {"rank"},
                 .users = net::Acceptor::Options::Users::Same},
                [this](net::Socket socket, const net::Identity&) { welcome(std::move(socket)); }) {
  epoll_.add(wake_.get(), EPOLLIN, kWakeId);
  epoll_.add(acceptor_.fd(), EPOLLIN, kAcceptorId);
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
    offered_[id] = {std::move(fd), takers, {}};
  }
  wake();
}

void SegmentServer::put_problem(uint64_t id, std::string problem) {
  {
    const std::lock_guard lock(mutex_);
    offered_[id] = {net::Fd(), 1 << 20, std::move(problem)};
  }
  wake();
}

void SegmentServer::run(std::stop_token stop) {
  std::array<epoll_event, 64> events;
  while (!stop.stop_requested()) {
    for (const epoll_event& event : epoll_.wait(events, acceptor_.due())) {
      if (event.data.u64 == kWakeId) {
        uint64_t count = 0;
        [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
        answer_all();
      } else if (event.data.u64 != kAcceptorId) {
        on_event(event.data.u64);
      }
    }
    acceptor_.step();
  }
}

void SegmentServer::welcome(net::Socket socket) {
  const uint64_t number = next_number_++;
  epoll_.add(socket.fd(), EPOLLIN, number);
  clients_[number].socket = std::move(socket);
}

/// A client sent the id of the segment that it wants, or closed the connection.
void SegmentServer::on_event(uint64_t number) {
  const auto found = clients_.find(number);
  if (found == clients_.end()) return;
  Client& client = found->second;
  // One byte more than the id, to notice a client that sends too much.
  std::array<char, sizeof client.id + 1> bytes;
  const std::size_t room = bytes.size() - client.id_bytes;
  const ssize_t got = ::recv(client.socket.fd(), bytes.data(), room, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const auto total = client.id_bytes + static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  if (got <= 0 || total > sizeof client.id) {
    clients_.erase(found);
    return;
  }
  std::copy_n(bytes.data(), got, reinterpret_cast<char*>(&client.id) + client.id_bytes);
  client.id_bytes = total;
  const std::lock_guard lock(mutex_);
  if (answer(client)) clients_.erase(found);
}

void SegmentServer::answer_all() {
  const std::lock_guard lock(mutex_);
  for (auto client = clients_.begin(); client != clients_.end();)
    client = answer(client->second) ? clients_.erase(client) : std::next(client);
}

/// Returns true if the client has been answered or cannot be reached.
bool SegmentServer::answer(Client& client) {
  if (client.id_bytes < sizeof client.id) return false;
  const auto found = offered_.find(client.id);
  if (found == offered_.end()) return false;
  OfferedSegment& offer = found->second;
  const auto deadline = net::Clock::now() + kAnswerTime;
  try {
    client.socket.send_all(offer.fd ? &kHere : &kProblem, 1, deadline);
    if (!offer.fd)
      net::send_frame(client.socket, offer.problem, deadline);
    else
      net::send_fd(client.socket.fd(), offer.fd.get(), deadline);
    if (--offer.takers == 0) offered_.erase(found);
  } catch (const std::exception&) {  // it has gone; if it needs the segment it asks again
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
