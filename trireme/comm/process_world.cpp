#include "trireme/comm/process_world.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "trireme/core/error.h"
#include "trireme/net/file_limit.h"
#include "trireme/net/shared_memory.h"

namespace trireme::comm {

namespace {

std::string_view to_string(TransportKind kind) {
  switch (kind) {
    case TransportKind::Auto: return "auto";
    case TransportKind::Shm: return "shm";
    case TransportKind::Tcp: return "tcp";
    case TransportKind::Nccl: return "nccl";
  }
  return "";
}

}  // namespace

ProcessWorld::ProcessWorld(const Bootstrap& given, TransportKind kind)
    : bootstrap(given), wanted(kind) {
  net::raise_file_limit(5 * bootstrap.size + 600, 2 * bootstrap.size + 64,
                        fmt::format("a rank of a world of {}", bootstrap.size));
  RankEntry entry;
  entry.host = host_name();
  entry.host_key = bootstrap.host_key.empty() ? net::host_key() : bootstrap.host_key;
  entry.pid = ::getpid();
  entry.born = process_born(entry.pid);
  entry.wants = to_string(wanted);
  entry.gpu = bootstrap.gpu;
  // A name that nobody can guess or take first. It disappears with the process.
  entry.segments = "trireme-" + net::Secret::random().to_text().substr(0, 32);
  auto server = std::make_unique<SegmentServer>(net::listen_unix_abstract(entry.segments),
                                                bootstrap.secret, bootstrap.as("segments"));
  if (wanted != TransportKind::Shm) {
    listener.emplace(net::Address{bootstrap.address, 0});
    entry.address = listener->address().to_string();
  }
  entries = exchange_entries(bootstrap, entry);
  members = members_of(entries);
  std::vector<std::string> sockets;
  std::vector<uint64_t> born;
  for (std::size_t rank = 0; rank < entries.size(); ++rank) {
    if (entries[rank].wants != entry.wants)
      throw CommError(
          fmt::format("rank {} asks for the backend {}, rank {} for {}; set "
                      "the same TRIREME_BACKEND on every rank",
                      bootstrap.rank, entry.wants, rank, entries[rank].wants));
    sockets.push_back(entries[rank].segments);
    born.push_back(entries[rank].born);
  }
  segments = std::make_shared<ShmSegments>(std::move(server), bootstrap.secret,
                                           bootstrap.as("rank"), std::move(sockets));
  monitor = std::make_unique<Monitor>(bootstrap.options.heartbeat);
  monitor->expect(std::move(born));
}

TransportKind ProcessWorld::host_transport() const {
  if (wanted == TransportKind::Shm || wanted == TransportKind::Tcp) return wanted;
  return here().size() == members.size() ? TransportKind::Shm : TransportKind::Tcp;
}

std::vector<int> ProcessWorld::here() const {
  const int host = members[static_cast<std::size_t>(bootstrap.rank)].host_index;
  std::vector<int> ranks = all();
  std::erase_if(
      ranks, [&](int rank) { return members[static_cast<std::size_t>(rank)].host_index != host; });
  return ranks;
}

std::vector<int> ProcessWorld::all() const {
  std::vector<int> ranks(members.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace trireme::comm
