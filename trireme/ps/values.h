#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/philox.h"

namespace trireme::ps {

/// Copies numbers out of the bytes of a message, which may lie at any address.
template <class T>
void copy_bytes(std::string_view bytes, T* to) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

template <class T>
std::vector<T> values_of(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  copy_bytes(bytes.substr(0, values.size() * sizeof(T)), values.data());
  return values;
}

/// sum[i] += number i of the bytes.
template <class T>
void add_values(std::string_view bytes, std::span<T> sum) {
  const char* from = bytes.data();
  for (size_t i = 0; i < sum.size(); ++i, from += sizeof(T)) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    sum[i] += value;
  }
}

template <class T>
std::string bytes_of_values(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

/// Uniform in [-1, 1), a function of the seed, the table and the place of the element, so that a
/// row has the same first values wherever and whenever it is created.
inline double first_value(uint64_t seed, uint64_t table, uint64_t key, uint64_t elem) {
  const auto words = core::philox(seed ^ (table << 48), key, elem);
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-52 - 1.0;
}

}  // namespace trireme::ps
