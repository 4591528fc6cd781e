#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::core {

/// XXH3, 64 bits: the same on every machine.
uint64_t hash64(std::string_view bytes);
uint64_t hash64(const void* data, std::size_t bytes);

/// XXH3, 128 bits, as 32 hexadecimal digits in its canonical (big-endian) order.
std::string hash128_hex(const void* data, std::size_t bytes);

}  // namespace trireme::core
