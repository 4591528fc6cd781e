#include "trireme/comm/shm/shm_segments.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/net/shared_memory.h"

namespace trireme::comm {

namespace {

constexpr auto kPatience = std::chrono::seconds(60);

Mapping map(int fd, std::size_t bytes) {
  auto memory = net::map_shared_memory(fd, bytes);
  return {memory.get(), bytes, memory};
}

}  // namespace

ShmSegments::ShmSegments(std::unique_ptr<SegmentServer> server, net::Secret secret,
                         net::Identity me, std::vector<std::string> sockets)
    : server_(std::move(server)),
      secret_(std::move(secret)),
      me_(std::move(me)),
      sockets_(std::move(sockets)) {}

Segments::Location ShmSegments::locate(const void* data, int64_t bytes,
                                       const std::vector<int>& ranks) const {
  if (by_address_.empty()) return {};
  const auto* address = static_cast<const std::byte*>(data);
  auto known = by_address_.upper_bound(address);
  if (known == by_address_.begin()) return {};
  --known;
  const SharedSegment& segment = known->second;
  if (address + bytes > segment.mapping.base + segment.mapping.bytes) return {};
  // Only the ranks that made the segment together have mapped it.
  const auto has_it = [&](int rank) {
    return std::find(segment.ranks.begin(), segment.ranks.end(), rank) != segment.ranks.end();
  };
  if (&ranks != &segment.ranks && !std::all_of(ranks.begin(), ranks.end(), has_it)) return {};
  return {segment.id, static_cast<uint64_t>(address - segment.mapping.base)};
}

std::byte* ShmSegments::at(Location location) const {
  return by_id_.at(location.segment) + location.offset;
}

net::Fd ShmSegments::fetch_from(int owner, uint64_t id, net::Deadline deadline) const {
  try {
    return fetch_segment(sockets_[static_cast<std::size_t>(owner)], id, secret_, me_, deadline);
  } catch (const CommError& error) {
    throw CommError(
        fmt::format("cannot get memory from rank {}: {}; has it ended, or is it stopped?", owner,
                    error.what()));
  }
}

Mapping ShmSegments::make(uint64_t id, std::size_t bytes, const std::vector<int>& ranks) {
  return make_by(id, bytes, ranks, net::Clock::now() + kPatience);
}

Mapping ShmSegments::make_by(uint64_t id, std::size_t bytes, const std::vector<int>& ranks,
                             net::Deadline deadline) {
  if (ranks.front() != me_.rank) {
    const net::Fd fd = fetch_from(ranks.front(), id, deadline);
    net::check_shared_memory(fd.get(), bytes);
    return map(fd.get(), bytes);
  }
  try {
    net::Fd fd = net::make_shared_memory(bytes);
    Mapping mapping = map(fd.get(), bytes);
    server_->put(id, std::move(fd), static_cast<int>(ranks.size()) - 1);
    return mapping;
  } catch (const std::exception& error) {
    server_->put_problem(id, error.what());
    throw;
  }
}

void ShmSegments::add(uint64_t id, const Mapping& mapping, const std::vector<int>& ranks) {
  by_address_[mapping.base] = {id, mapping, ranks};
  by_id_[id] = mapping.base;
}

void ShmSegments::remove(uint64_t id) {
  const auto base = by_id_.find(id);
  if (base == by_id_.end()) return;
  by_address_.erase(base->second);
  by_id_.erase(base);
}

}  // namespace trireme::comm
