#include "trireme/ps/view.h"

#include <algorithm>
#include <map>

#include "trireme/core/philox.h"

namespace trireme::ps {

namespace {

uint64_t place_on_ring(uint64_t kind, uint64_t index) {
  const auto words = core::philox(kind, index, 0);
  return uint64_t{words[0]} << 32 | words[1];
}

constexpr uint64_t kPlaces = 64, kOfServer = 1, kOfRange = 2;

}  // namespace

std::vector<std::vector<uint32_t>> place_ranges(uint32_t ranges,
                                                const std::vector<uint32_t>& servers,
                                                size_t count) {
  std::vector<std::vector<uint32_t>> chosen(ranges);
  if (servers.empty()) return chosen;
  count = std::min(count, servers.size());
  std::map<uint64_t, uint32_t> ring;
  for (const uint32_t server : servers)
    for (uint64_t place = 0; place < kPlaces; ++place)
      ring[place_on_ring(kOfServer, server * kPlaces + place)] = server;
  const auto share = [&](size_t things) { return (things + servers.size() - 1) / servers.size(); };
  std::map<uint32_t, size_t> heads, copies;
  // All heads first, so that copies find the loads that heads have made.
  for (size_t copy = 0; copy < count; ++copy) {
    for (RangeId range = 0; range < ranges; ++range) {
      std::vector<uint32_t>& mine = chosen[range];
      const auto takes = [&](uint32_t server, bool even_if_full) {
        if (std::ranges::find(mine, server) != mine.end()) return false;
        return even_if_full ||
               (copy > 0 ? copies[server] < share(count * ranges) : heads[server] < share(ranges));
      };
      // Every other server may be full and hold the range already: then a full one takes it.
      for (const bool even_if_full : {false, true}) {
        auto at = ring.lower_bound(place_on_ring(kOfRange, range));
        for (size_t steps = 0; steps < ring.size() && mine.size() <= copy; ++steps, ++at) {
          if (at == ring.end()) at = ring.begin();
          if (!takes(at->second, even_if_full)) continue;
          mine.push_back(at->second);
          ++copies[at->second];
          if (copy == 0) ++heads[at->second];
        }
      }
    }
  }
  return chosen;
}

}  // namespace trireme::ps
