#include "trireme/ps/stored_values.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "trireme/core/error.h"
#include "trireme/ps/values.h"

namespace trireme::ps {

namespace {

/// Calls `visit` with a number of the type; returns whether there is such a type.
template <class Visit>
bool visit_type(std::string_view dtype, Visit visit) {
  if (dtype == "F64") return visit(double{}), true;
  if (dtype == "F32") return visit(float{}), true;
  if (dtype == "I64") return visit(int64_t{}), true;
  if (dtype == "I32") return visit(int32_t{}), true;
  if (dtype == "I16") return visit(int16_t{}), true;
  if (dtype == "I8") return visit(int8_t{}), true;
  if (dtype == "U8" || dtype == "BOOL") return visit(uint8_t{}), true;
  return false;
}

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    using Limits = std::numeric_limits<To>;
    const From rounded = std::nearbyint(value);
    if (!(rounded > static_cast<From>(Limits::min()))) return Limits::min();  // nan, too
    if (rounded >= static_cast<From>(Limits::max())) return Limits::max();
    return static_cast<To>(rounded);
  } else {
    return static_cast<To>(value);
  }
}

template <class To, class From>
std::string convert(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() / sizeof(From) * sizeof(To));
  for (const From value : values_of<From>(bytes)) {
    const To number = converted<To>(value);
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return out;
}

}  // namespace

bool can_store(std::string_view dtype) {
  return visit_type(dtype, [](auto) {});
}

std::string to_stored(std::string_view numbers, std::string_view dtype) {
  std::string stored;
  const bool known =
      visit_type(dtype, [&](auto type) { stored = convert<decltype(type), double>(numbers); });
  core::check(known, "numbers cannot be stored as '{}'; use {}", dtype, kStoredTypes);
  return stored;
}

std::string from_stored(std::string_view stored, std::string_view dtype) {
  std::string numbers;
  const bool known =
      visit_type(dtype, [&](auto type) { numbers = convert<double, decltype(type)>(stored); });
  core::check(known, "numbers cannot be stored as '{}'; use {}", dtype, kStoredTypes);
  return numbers;
}

}  // namespace trireme::ps
