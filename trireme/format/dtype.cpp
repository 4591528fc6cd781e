#include "trireme/format/dtype.h"

#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "trireme/core/error.h"

namespace trireme::format {

namespace {

constexpr std::array<std::pair<std::string_view, int64_t>, 11> kDtypes = {{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"U16", 2},
    {"I8", 1},
    {"U8", 1},
    {"BOOL", 1},
}};

long double from_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float sign = bits >> 15 != 0 ? -1.0F : 1.0F;
  if (exponent == 31)
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

long double from_bfloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

template <class T, class Convert>
std::vector<long double> decode_as(std::span<const std::byte> bytes, Convert convert) {
  std::vector<long double> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = convert(value);
  }
  return values;
}

}  // namespace

int64_t dtype_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kDtypes)
    if (name == dtype) return bytes;
  return 0;
}

std::string known_dtypes() {
  std::string all;
  for (const auto& [name, bytes] : kDtypes)
    all += fmt::format("{}{}", all.empty() ? "" : ", ", name);
  return all;
}

std::optional<int64_t> checked_numel(std::span<const int64_t> shape) {
  int64_t numel = 1;
  bool empty = false, fits = true;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
    fits = fits && !__builtin_mul_overflow(numel, size, &numel);
  }
  if (empty) return 0;
  return fits ? std::optional(numel) : std::nullopt;
}

std::optional<int64_t> checked_bytes(std::string_view dtype, std::span<const int64_t> shape) {
  const auto numel = checked_numel(shape);
  const int64_t each = dtype_bytes(dtype);
  int64_t bytes = 0;
  if (!numel || each == 0 || __builtin_mul_overflow(*numel, each, &bytes)) return std::nullopt;
  return bytes;
}

std::string format_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

std::vector<long double> decode(std::string_view dtype, std::span<const std::byte> bytes) {
  const auto same = [](auto value) { return static_cast<long double>(value); };
  if (dtype == "F64") return decode_as<double>(bytes, same);
  if (dtype == "F32") return decode_as<float>(bytes, same);
  if (dtype == "F16") return decode_as<uint16_t>(bytes, from_half);
  if (dtype == "BF16") return decode_as<uint16_t>(bytes, from_bfloat);
  if (dtype == "I64") return decode_as<int64_t>(bytes, same);
  if (dtype == "I32") return decode_as<int32_t>(bytes, same);
  if (dtype == "I16") return decode_as<int16_t>(bytes, same);
  if (dtype == "U16") return decode_as<uint16_t>(bytes, same);
  if (dtype == "I8") return decode_as<int8_t>(bytes, same);
  core::check(dtype == "U8" || dtype == "BOOL", "dtype '{}' is none of {}", dtype, known_dtypes());
  return decode_as<uint8_t>(bytes, same);
}

}  // namespace trireme::format
