#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::format {

/// Bytes of an element of "F32", "F64", "F16", "BF16", "I64", "I32", "I16", "U16", "I8", "U8" or
/// "BOOL", the names that safetensors gives them; 0 for any other.
int64_t dtype_bytes(std::string_view dtype);
/// All of them, for messages: "F64, F32, ...".
std::string known_dtypes();

/// The product of the sizes; nothing if one is negative or the product overflows.
std::optional<int64_t> checked_numel(std::span<const int64_t> shape);
/// The bytes of such a tensor; nothing also if the dtype is unknown.
std::optional<int64_t> checked_bytes(std::string_view dtype, std::span<const int64_t> shape);

/// "[2, 3]"
std::string format_shape(std::span<const int64_t> shape);

/// Elements as numbers. long double holds each of them exactly (on x86-64).
std::vector<long double> decode(std::string_view dtype, std::span<const std::byte> bytes);

}  // namespace trireme::format
