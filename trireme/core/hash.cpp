#include "trireme/core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace trireme::core {

uint64_t hash64(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

uint64_t hash64(std::string_view bytes) {
  return hash64(bytes.data(), bytes.size());
}

std::string hash128_hex(const void* data, std::size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace trireme::core
