#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::format {

/// Whether `cast` knows the dtype: "F64", "F32", "F16" or "BF16".
bool is_floating(std::string_view dtype);

/// The narrowest of the four that holds every value of both exactly.
std::string_view wider(std::string_view a, std::string_view b);

/// Converts `count` elements. Rounds once, to the nearest, ties to even; too large a number becomes
/// infinite. The memory must not overlap.
void cast(std::string_view from_dtype, const void* from, std::string_view to_dtype, void* to,
          int64_t count);

}  // namespace trireme::format
