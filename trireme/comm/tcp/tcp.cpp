#include "trireme/comm/tcp/tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <optional>
#include <thread>

#include "trireme/comm/group_backend.h"
#include "trireme/comm/process_world.h"
#include "trireme/comm/shared/world_memory.h"
#include "trireme/comm/tcp/tcp_streams.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

constexpr const char* kStream = "stream";
constexpr const char* kControl = "control";

/// The first rank of each host, in the order of hosts.
std::vector<int> leaders_of(const std::vector<Member>& members) {
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].host_index == static_cast<int>(leaders.size()))
      leaders.push_back(static_cast<int>(rank));
  }
  return leaders;
}

/// Every rank connects to those above it and is connected to by those below: the highest only
/// accepts, so nobody waits in a circle. The first ranks of hosts do so once more, for the
/// monitors.
class Connections {
 public:
  Connections(const Bootstrap& bootstrap, const std::vector<Entry>& entries,
              net::Listener& listener)
      : bootstrap_(bootstrap), entries_(entries), listener_(listener), streams(entries.size()) {}

  void make(const std::vector<int>& leaders) {
    const bool leads = std::find(leaders.begin(), leaders.end(), bootstrap_.rank) != leaders.end();
    int incoming = bootstrap_.rank;
    for (int rank = bootstrap_.rank + 1; rank < bootstrap_.size; ++rank) connect(rank, kStream);
    for (int leader : leaders) {
      if (!leads || leader == bootstrap_.rank) continue;
      if (leader > bootstrap_.rank)
        connect(leader, kControl);
      else
        ++incoming;
    }
    accept(incoming);
  }

  const Bootstrap& bootstrap_;
  const std::vector<Entry>& entries_;
  net::Listener& listener_;
  std::vector<net::Socket> streams;
  std::vector<std::pair<int, net::Socket>> controls;

 private:
  void connect(int rank, const char* role) {
    net::Socket socket = net::connect(
        net::parse_address(entries_[static_cast<std::size_t>(rank)].address), bootstrap_.deadline);
    const net::Identity peer =
        net::prove_as_client(socket, bootstrap_.secret, bootstrap_.as(role), bootstrap_.deadline);
    if (peer.rank != rank)
      throw CommError(fmt::format("rank {} answered where rank {} should listen", peer.rank, rank));
    keep(rank, role, std::move(socket));
  }

  /// Somebody who has connected, and proves who it is on a thread of its own: strangers that say
  /// nothing, or garbage, must not keep the ranks apart.
  struct Caller {
    net::Socket socket;
    std::optional<net::Identity> identity = {};
    std::atomic<bool> answered = false;
    std::jthread proving = {};

    explicit Caller(net::Socket its_socket) : socket(std::move(its_socket)) {}
    void prove(const Bootstrap& bootstrap) {
      try {
        identity = net::prove_as_server(socket, bootstrap.secret, bootstrap.as(kStream),
                                        bootstrap.deadline);
      } catch (const std::exception&) {  // not one of ours
      }
      answered = true;
    }
  };

  /// Takes connections until so many are ours.
  void accept(int wanted) {
    std::list<Caller> callers;
    const auto ours = [](const Caller& caller) { return caller.answered && caller.identity; };
    while (std::count_if(callers.begin(), callers.end(), ours) < wanted) {
      if (net::Clock::now() >= bootstrap_.deadline)
        throw TimeoutError(
            fmt::format("tcp, rank {}: not all ranks connected in time", bootstrap_.rank));
      const auto soon = net::Clock::now() + std::chrono::milliseconds(callers.empty() ? 100 : 1);
      if (net::wait_ready(listener_.fd(), POLLIN, soon) != net::Readiness::Ready) continue;
      Caller& caller = callers.emplace_back(listener_.accept(bootstrap_.deadline));
      caller.proving = std::jthread([&caller, this] { caller.prove(bootstrap_); });
    }
    for (Caller& caller : callers) {
      if (!caller.answered)
        ::shutdown(caller.socket.fd(), SHUT_RDWR);  // a stranger; nobody waits for it
      caller.proving.join();
      if (caller.identity)
        keep(caller.identity->rank, caller.identity->role, std::move(caller.socket));
    }
  }

  void keep(int rank, const std::string& role, net::Socket socket) {
    if (role == kControl)
      controls.emplace_back(rank, std::move(socket));
    else
      streams[static_cast<std::size_t>(rank)] = std::move(socket);
  }
};

}  // namespace

std::shared_ptr<Backend> make_tcp(const Bootstrap& bootstrap) {
  ProcessWorld process(bootstrap);
  net::Listener listener({bootstrap.address, 0});
  process.entry.address = listener.address().to_string();
  const auto entries = exchange_entries(bootstrap, process.entry);
  const auto members = members_of(entries);

  std::vector<int> all, here;
  for (int rank = 0; rank < bootstrap.size; ++rank) {
    all.push_back(rank);
    if (members[static_cast<std::size_t>(rank)].host_index ==
        members[static_cast<std::size_t>(bootstrap.rank)].host_index)
      here.push_back(rank);
  }
  const auto segments = process.make_segments(entries);
  const Mapping page = segments->make_by(kWorldId, WorldMemory::page_bytes(bootstrap.size), here,
                                         bootstrap.deadline);

  Connections connections(bootstrap, entries, listener);
  connections.make(leaders_of(members));
  for (auto& [rank, socket] : connections.controls) process.monitor->link(rank, std::move(socket));

  Transport transport;
  transport.kind = "tcp";
  transport.memory = page.keep;
  transport.page = reinterpret_cast<HostPage*>(page.base);
  auto streams = std::make_unique<TcpStreams>(std::move(connections.streams));
  transport.sleeper = std::make_unique<TcpSleeper>(*streams);
  transport.streams = std::move(streams);
  transport.monitor = std::move(process.monitor);
  auto world = std::make_shared<World>(bootstrap.rank, members, std::move(transport));
  return std::make_shared<GroupBackend>(
      std::move(world), std::make_unique<Lane>(kWorldId, "world", all, bootstrap.rank), Mapping{});
}

}  // namespace trireme::comm
