#include "trireme/comm/process_world.h"

#include <unistd.h>

#include "trireme/core/env.h"
#include "trireme/core/units.h"

namespace trireme::comm {

namespace {

constexpr double kHeartbeatSeconds = 10;

}  // namespace

ProcessWorld::ProcessWorld(const Bootstrap& given) : bootstrap(given) {
  entry.host = host_name();
  entry.host_key = bootstrap.host_key.empty() ? host_key() : bootstrap.host_key;
  entry.pid = ::getpid();
  entry.born = process_born(entry.pid);
  // A name that nobody can guess or take first; it goes with the process.
  entry.segments = "trireme-" + net::Secret::random().to_text().substr(0, 32);
  monitor = std::make_unique<Monitor>(Monitor::Options{
      .secret = bootstrap.secret,
      .identity = bootstrap.as("segments"),
      .listener = net::listen_unix_abstract(entry.segments),
      .heartbeat =
          core::from_seconds(core::env_double("TRIREME_HEARTBEAT_S").value_or(kHeartbeatSeconds))});
}

std::shared_ptr<ShmSegments> ProcessWorld::make_segments(const std::vector<Entry>& entries) {
  std::vector<std::string> sockets;
  std::vector<uint64_t> born;
  for (const Entry& other : entries) {
    sockets.push_back(other.segments);
    born.push_back(other.born);
  }
  monitor->expect(std::move(born));
  return std::make_shared<ShmSegments>(*monitor, bootstrap.secret, bootstrap.as("rank"),
                                       std::move(sockets));
}

}  // namespace trireme::comm
