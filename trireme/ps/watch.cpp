#include "trireme/ps/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "trireme/core/hash.h"
#include "trireme/ps/connections.h"
#include "trireme/ps/protocol.h"

namespace trireme::ps {

std::optional<std::string> ask_status(ManagerPlace& place, const std::string& job,
                                      const net::Secret& secret, net::Deadline until) {
  constexpr std::chrono::milliseconds kAskAgain{250};
  constexpr uint32_t kMostWatchers = 1 << 20;  // by their process, so that two may ask at once
  const NodeId me{Role::Watcher, static_cast<uint32_t>(::getpid()) % kMostWatchers};
  std::optional<std::string> json;
  Connections connections(
      {.job = job, .secret = secret, .me = {me, 0}, .find = [&](LaneId) { return place.find(); }},
      [&](const Frame& frame) {
        const Message message = decode(frame);
        if (const auto* status = std::get_if<Status>(&message.body)) json = status->json;
      });
  const Frame question = encode({.job = core::hash64(job), .from = me}, StatusAsk{});
  while (!json && net::Clock::now() < until) {
    connections.send({kManager, 0}, question);
    const auto again = std::min(until, net::Clock::now() + kAskAgain);
    while (!json && net::Clock::now() < again) connections.step(again);
  }
  return json;
}

}  // namespace trireme::ps
