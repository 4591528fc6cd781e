// Numbers of 16, 32 and 64 bits. Those of 16 are made from 32. A double becomes a float first,
// which must not round to the nearest: two such roundings in a row can miss. It is "rounded to
// odd": cut off, with the last bit set if anything was lost, which the second rounding then sees.
//
//     1.0000 0000 1000 0000 ... 0001   a double, just above the middle of two bfloat16
//     1.0000 0000 1000 0000 001        as a float, to odd: still above the middle
#include "trireme/format/cast.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"

namespace trireme::format {

namespace {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

float to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(back) > std::fabs(value)) --bits;  // towards zero; infinity becomes the largest
  return std::bit_cast<float>(bits | 1);
}

constexpr uint32_t kSign = 0x8000'0000, kInfinity = 0x7F80'0000;

BFloat to_bfloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) return {static_cast<uint16_t>(bits >> 16 | 0x40)};  // NaN
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

Half to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSign) >> 16, size = bits & ~kSign;
  const auto signed_half = [&](uint32_t half) { return Half{static_cast<uint16_t>(sign | half)}; };
  if (size > kInfinity) return signed_half(0x7E00 | (size >> 13 & 0x3FF));  // NaN
  if (size >= 0x4780'0000) return signed_half(0x7C00);                      // from 2^16
  if (size >= 0x3880'0000)  // from 2^-14: another bias of the exponent
    return signed_half((size - 0x3800'0000 + 0xFFF + (size >> 13 & 1)) >> 13);
  // Below, halves are multiples of 2^-24.
  return signed_half(static_cast<uint32_t>(std::nearbyint(std::bit_cast<float>(size) * 0x1p24F)));
}

float to_float(Half half) {
  const uint32_t sign = (half.bits & 0x8000U) << 16, size = half.bits & 0x7FFFU;
  if (size >= 0x7C00) return std::bit_cast<float>(sign | kInfinity | (size & 0x3FF) << 13);
  if (size < 0x400) return (sign != 0 ? -0x1p-24F : 0x1p-24F) * static_cast<float>(size);
  return std::bit_cast<float>(sign | ((size << 13) + 0x3800'0000));
}

float to_float(BFloat value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// From each of the four to each.
template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_floating_point_v<From> && std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (!std::is_floating_point_v<From>) {
    return converted<To>(to_float(value));
  } else {
    float single;
    if constexpr (std::is_same_v<From, double>)
      single = to_odd(value);
    else
      single = value;
    if constexpr (std::is_same_v<To, Half>)
      return to_half(single);
    else
      return to_bfloat(single);
  }
}

template <class From, class To>
void convert(const char* from, char* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    const To result = converted<To>(value);
    std::memcpy(to + i * static_cast<int64_t>(sizeof result), &result, sizeof result);
  }
}

/// Calls `body` with a value of the type.
template <class Body>
void with_type(std::string_view dtype, const Body& body) {
  core::check(is_floating(dtype), "'{}' is none of F64, F32, F16, BF16", dtype);
  if (dtype == "F64") return body(double{});
  if (dtype == "F32") return body(float{});
  if (dtype == "F16") return body(Half{});
  body(BFloat{});
}

}  // namespace

bool is_floating(std::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

std::string_view wider(std::string_view a, std::string_view b) {
  if (a == b) return a;
  return a == "F64" || b == "F64" ? "F64" : "F32";
}

void cast(std::string_view from_dtype, const void* from, std::string_view to_dtype, void* to,
          int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count * dtype_bytes(from_dtype)));
    return;
  }
  with_type(from_dtype, [&](auto source) {
    with_type(to_dtype, [&](auto target) {
      convert<decltype(source), decltype(target)>(static_cast<const char*>(from),
                                                  static_cast<char*>(to), count);
    });
  });
}

}  // namespace trireme::format
