#include "trireme/comm/local/local.h"

#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/group_backend.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/process_world.h"
#include "trireme/comm/shared/futex_sleeper.h"
#include "trireme/comm/shared/world_memory.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

/// Zeroed memory. The kernel provides the pages when they are first used.
Mapping map_private(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw CommError(fmt::format("cannot map {} bytes: {}", bytes, core::errno_text(errno)));
  return {static_cast<std::byte*>(base), bytes,
          std::shared_ptr<void>(base, [bytes](void* p) { ::munmap(p, bytes); })};
}

}  // namespace

class LocalHub {
 public:
  explicit LocalHub(int ranks) : size(ranks), memory(map_private(WorldMemory::bytes(ranks))) {}

  /// Returns the same memory to all ranks that ask for this id; forgets it when the last one has
  /// it.
  Mapping share(uint64_t id, std::size_t bytes, std::size_t takers) {
    const std::lock_guard lock(mutex_);
    auto& [mapping, left] = shared_.try_emplace(id, Mapping{}, takers).first->second;
    if (mapping.base == nullptr) mapping = map_private(bytes);
    const Mapping mine = mapping;
    if (--left == 0) shared_.erase(id);
    return mine;
  }

  const int size;
  const Mapping memory;

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::pair<Mapping, std::size_t>> shared_;
};

namespace {

/// Threads see each other's memory, so the location of data is its address.
class LocalSegments final : public Segments {
 public:
  explicit LocalSegments(std::shared_ptr<LocalHub> hub) : hub_(std::move(hub)) {}

  Location locate(const void* data, int64_t, const std::vector<int>&) const override {
    return {kWorldId, reinterpret_cast<uint64_t>(data)};
  }
  std::byte* at(Location location) const override {
    return reinterpret_cast<std::byte*>(location.offset);
  }
  Mapping make(uint64_t id, std::size_t bytes, const std::vector<int>& ranks) override {
    return hub_->share(id, bytes, ranks.size());
  }
  void add(uint64_t, const Mapping&, const std::vector<int>&) override {}
  void remove(uint64_t) override {}

 private:
  std::shared_ptr<LocalHub> hub_;
};

}  // namespace

std::shared_ptr<LocalHub> make_local_hub(int size) {
  core::check(size >= 1, "a local world needs at least one rank, not {}", size);
  return std::make_shared<LocalHub>(size);
}

std::shared_ptr<Backend> make_local(std::shared_ptr<LocalHub> hub, int rank, WorldOptions options) {
  const int size = hub->size;
  core::check(rank >= 0 && rank < size, "rank {} is not one of the {} ranks of a local world", rank,
              size);
  WorldMemory memory(hub->memory, size);
  std::vector<Member> members(static_cast<std::size_t>(size), Member{host_name(), ::getpid(), 0});
  Transport transport;
  transport.kind = "local";
  transport.memory = hub;
  transport.page = memory.page;
  transport.streams =
      std::make_unique<RingStreams>(memory.rings, rank, size, seats_of(*memory.page, size));
  transport.sleeper = std::make_unique<FutexSleeper>(memory.page->seats[rank]);
  transport.segments = std::make_shared<LocalSegments>(hub);
  auto world =
      std::make_shared<World>(rank, std::move(members), std::move(transport), std::move(options));
  std::vector<int> all;
  for (int i = 0; i < size; ++i) all.push_back(i);
  auto lane = std::make_unique<Lane>(kWorldId, "world", all, rank);
  return std::make_shared<GroupBackend>(std::move(world), std::move(lane), memory.group);
}

}  // namespace trireme::comm
