#include "trireme/ps/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "trireme/core/hash.h"
#include "trireme/ps/connections.h"
#include "trireme/ps/protocol.h"

namespace trireme::ps {

namespace {

std::string why_silent(const Connections& connections, LaneId manager) {
  if (connections.reaches(manager))
    return "its manager listens, but does not answer: it is stopped (SIGSTOP, Ctrl-Z), or gets no "
           "time to run";
  if (!connections.failure().empty())
    return fmt::format("whoever listens at its address {}", connections.failure());
  return "nobody listens at its address: the job has ended, or its manager is being started again";
}

}  // namespace

StatusAnswer ask_status(ManagerPlace& place, const std::string& job, const net::Secret& secret,
                        net::Deadline until) {
  constexpr std::chrono::milliseconds kAskAgain{250};
  constexpr uint32_t kMostWatchers = 1 << 20;  // by their process, so that two may ask at once
  const NodeId me{Role::Watcher, static_cast<uint32_t>(::getpid()) % kMostWatchers};
  constexpr LaneId manager{kManager, 0};
  StatusAnswer answer;
  Connections connections(
      {.job = job, .secret = secret, .me = {me, 0}, .find = [&](LaneId) { return place.find(); }},
      [&](const Frame& frame) {
        const Message message = decode(frame);
        if (const auto* status = std::get_if<Status>(&message.body)) answer.json = status->json;
      });
  const Frame question = encode({.job = core::hash64(job), .from = me}, StatusAsk{});
  while (!answer.json && connections.failure().empty() && net::Clock::now() < until) {
    connections.send(manager, question);
    const auto again = std::min(until, net::Clock::now() + kAskAgain);
    while (!answer.json && net::Clock::now() < again) connections.step(again);
  }
  if (!answer.json) answer.why_not = why_silent(connections, manager);
  return answer;
}

}  // namespace trireme::ps
