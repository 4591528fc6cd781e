#include <thread>

#include "trireme/comm/monitor.h"
#include "trireme/core/error.h"
#include "trireme/net/frame.h"

namespace trireme::comm {

namespace {

constexpr char kNotYet = 'n', kHere = 'h', kProblem = 'p';

}  // namespace

void Shelf::put(uint64_t id, net::Fd fd, int takers) {
  const std::lock_guard lock(mutex_);
  if (takers > 0) items_[id] = {std::move(fd), takers, {}};
}

void Shelf::put_problem(uint64_t id, std::string problem) {
  const std::lock_guard lock(mutex_);
  items_[id] = {net::Fd(), 1 << 20, std::move(problem)};
}

void Shelf::serve(net::Socket& peer, net::Deadline deadline) {
  uint64_t id = 0;
  peer.recv_all(&id, sizeof id, deadline);
  const std::lock_guard lock(mutex_);
  const auto item = items_.find(id);
  if (item == items_.end()) {
    peer.send_all(&kNotYet, 1, deadline);
  } else if (!item->second.problem.empty()) {
    peer.send_all(&kProblem, 1, deadline);
    net::send_frame(peer, item->second.problem, deadline);
  } else {
    peer.send_all(&kHere, 1, deadline);
    net::send_fd(peer.fd(), item->second.fd.get(), deadline);
    if (--item->second.takers == 0) items_.erase(item);
  }
}

net::Fd fetch_segment(const std::string& name, uint64_t id, const net::Secret& secret,
                      const net::Identity& me, net::Deadline deadline) {
  for (auto pause = std::chrono::microseconds(200);;
       pause = std::min(pause * 2, std::chrono::microseconds(10000))) {
    net::Socket owner = net::connect_unix_abstract(name, deadline);
    net::prove_as_client(owner, secret, me, deadline);
    owner.send_all(&id, sizeof id, deadline);
    char answer = 0;
    owner.recv_all(&answer, 1, deadline);
    if (answer == kHere) return net::recv_fd(owner.fd(), deadline);
    if (answer == kProblem) throw CommError(net::recv_frame(owner, deadline));
    if (net::Clock::now() >= deadline) throw TimeoutError("the segment was never made");
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace trireme::comm
