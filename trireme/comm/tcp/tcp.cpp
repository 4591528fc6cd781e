#include "trireme/comm/tcp/tcp.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "trireme/comm/group_backend.h"
#include "trireme/comm/shared/world_memory.h"
#include "trireme/comm/tcp/tcp_streams.h"
#include "trireme/core/error.h"
#include "trireme/net/acceptor.h"
#include "trireme/net/dialer.h"

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

/// Connects every pair of ranks. Each rank calls the ranks above it while those below call it, all
/// at the same time, so a rank does about n handshakes of work and never waits for its turn. The
/// first ranks of the hosts connect once more, for the monitors.
///
///            calls
///   rank 0 ---------> 1, 2, 3
///   rank 1 ---------> 2, 3
///   rank 2 ---------> 3
class Connections {
 public:
  explicit Connections(ProcessWorld& process)
      : process_(process),
        bootstrap_(process.bootstrap),
        streams_(static_cast<std::size_t>(bootstrap_.size)),
        controls_(static_cast<std::size_t>(bootstrap_.size)),
        acceptor_(process.listener->release(),
                  {.secret = bootstrap_.secret,
                   .me = bootstrap_.as("rank"),
                   .roles = {kStream, kControl}},
                  [this](net::Socket socket, const net::Identity& who) {
                    keep(who.rank, who.role, std::move(socket));
                  }),
        dialer_(bootstrap_.secret, [this](net::Socket socket, const net::Dialer::Call& call) {
          keep(call.rank, call.me.role, std::move(socket));
        }) {}

  void make() {
    const auto leaders = leaders_of(process_.members);
    const bool leads = std::find(leaders.begin(), leaders.end(), bootstrap_.rank) != leaders.end();
    for (int rank = 0; rank < bootstrap_.size; ++rank) expect(rank, kStream);
    for (int leader : leaders) {
      if (leads) expect(leader, kControl);
    }
    net::Epoll both;
    both.add(acceptor_.fd(), EPOLLIN, 0);
    both.add(dialer_.fd(), EPOLLIN, 1);
    std::array<epoll_event, 2> events;
    while (missing_ > 0) {
      if (net::Clock::now() >= bootstrap_.deadline) give_up();
      acceptor_.step();
      dialer_.step();
      if (missing_ > 0)
        both.wait(events, std::min({acceptor_.due(), dialer_.due(), bootstrap_.deadline}));
    }
  }

  std::vector<net::Socket> take_streams() { return std::move(streams_); }
  std::vector<net::Socket> take_controls() { return std::move(controls_); }

 private:
  void expect(int rank, const char* role) {
    if (rank == bootstrap_.rank) return;
    ++missing_;
    expected_.emplace_back(rank, role);
    if (rank < bootstrap_.rank) return;  // it calls us
    dialer_.call(
        {.address = net::parse_address(process_.entries[static_cast<std::size_t>(rank)].address),
         .role = "rank",
         .rank = rank,
         .me = bootstrap_.as(role)});
  }

  /// A rank whose connection broke in the middle connects again, so the newer connection is the
  /// right one.
  void keep(int rank, const std::string& role, net::Socket socket) {
    net::Socket& place = place_of(rank, role);
    if (!place) --missing_;
    place = std::move(socket);
  }

  net::Socket& place_of(int rank, std::string_view role) {
    return (role == kControl ? controls_ : streams_)[static_cast<std::size_t>(rank)];
  }

  [[noreturn]] void give_up() {
    std::vector<int> ranks;
    for (const auto& [rank, role] : expected_)
      if (!place_of(rank, role)) ranks.push_back(rank);
    throw TimeoutError(fmt::format(
        "tcp, rank {} at {}: no connection with rank {} in time; is a firewall between the hosts?",
        bootstrap_.rank, process_.entries[static_cast<std::size_t>(bootstrap_.rank)].address,
        fmt::join(ranks, ", ")));
  }

  ProcessWorld& process_;
  const Bootstrap& bootstrap_;
  std::vector<net::Socket> streams_, controls_;  ///< by rank
  std::vector<std::pair<int, const char*>> expected_;
  int missing_ = 0;
  net::Acceptor acceptor_;
  net::Dialer dialer_;
};

/// Kept for the life of the world although no operation uses it: the control page, and the server
/// from which late ranks still fetch it.
struct WorldKeepAlive {
  std::shared_ptr<void> page;
  std::shared_ptr<ShmSegments> segments;
};

}  // namespace

std::shared_ptr<Backend> make_tcp(ProcessWorld process) {
  const Bootstrap& bootstrap = process.bootstrap;
  const Mapping page = process.segments->make_by(kWorldId, WorldMemory::page_bytes(bootstrap.size),
                                                 process.here(), bootstrap.deadline);
  Connections connections(process);
  connections.make();
  auto controls = connections.take_controls();
  for (std::size_t rank = 0; rank < controls.size(); ++rank) {
    if (controls[rank]) process.monitor->link(static_cast<int>(rank), std::move(controls[rank]));
  }
  Transport transport;
  transport.kind = "tcp";
  transport.memory = std::make_shared<WorldKeepAlive>(WorldKeepAlive{page.keep, process.segments});
  transport.page = reinterpret_cast<HostPage*>(page.base);
  auto streams =
      std::make_unique<TcpStreams>(connections.take_streams(), bootstrap.options.rate_mbit);
  transport.sleeper = std::make_unique<TcpSleeper>(*streams);
  transport.streams = std::move(streams);
  transport.monitor = std::move(process.monitor);
  auto world = std::make_shared<World>(bootstrap.rank, process.members, std::move(transport),
                                       bootstrap.options);
  return std::make_shared<GroupBackend>(
      std::move(world), std::make_unique<Lane>(kWorldId, "world", process.all(), bootstrap.rank),
      Mapping{});
}

}  // namespace trireme::comm
