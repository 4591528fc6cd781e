#pragma once

#include <string>
#include <string_view>

namespace trireme::ps {

/// What numbers of a float64 table may be in a checkpoint. Workers keep such things beside their
/// weights as running statistics (F32) and counts of batches (I64), and whoever continues from the
/// checkpoint wants them as they were.
constexpr const char* kStoredTypes = "F64, F32, I64, I32, I16, I8, U8 or BOOL";
bool can_store(std::string_view dtype);

/// Bytes of float64 numbers as bytes of this type. Exact for numbers that the type has; others are
/// rounded to the nearest, and to an end of its range.
std::string to_stored(std::string_view numbers, std::string_view dtype);
/// The reverse.
std::string from_stored(std::string_view stored, std::string_view dtype);

}  // namespace trireme::ps
