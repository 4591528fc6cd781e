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

}  // namespace

std::vector<uint32_t> servers_of_range(RangeId range, const std::vector<uint32_t>& servers,
                                       size_t count) {
  constexpr uint64_t kPlaces = 64, kOfServer = 1, kOfRange = 2;
  std::map<uint64_t, uint32_t> ring;
  for (const uint32_t server : servers)
    for (uint64_t place = 0; place < kPlaces; ++place)
      ring[place_on_ring(kOfServer, server * kPlaces + place)] = server;
  std::vector<uint32_t> chosen;
  auto at = ring.lower_bound(place_on_ring(kOfRange, range));
  for (size_t steps = 0; steps < ring.size() && chosen.size() < count; ++steps, ++at) {
    if (at == ring.end()) at = ring.begin();
    if (std::ranges::find(chosen, at->second) == chosen.end()) chosen.push_back(at->second);
  }
  return chosen;
}

}  // namespace trireme::ps
