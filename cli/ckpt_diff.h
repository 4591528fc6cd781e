#pragma once

#include <string>

namespace trireme::cli {

/// Compares two checkpoints, prints a line for each tensor that differs and a summary, and returns
/// whether all tensors are the same, bit for bit.
bool print_difference(const std::string& folder_a, const std::string& folder_b);

}  // namespace trireme::cli
