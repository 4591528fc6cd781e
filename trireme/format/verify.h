#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/format/index.h"

namespace trireme::format {

/// Something wrong with a checkpoint.
struct Damage {
  std::string file;
  int64_t block = -1;                ///< -1: not one block of it
  std::vector<std::string> tensors;  ///< that have elements there
  std::string sentence;              ///< all of it, for people
};

/// The files that are missing or have another size, found without reading them. Opening a
/// Checkpoint checks its index, and reading checks every block: nothing damaged is ever used.
std::vector<Damage> find_missing(const std::string& folder, const Index& index);

/// Reads every byte of a checkpoint's folder and returns all damage; empty: the checkpoint is
/// whole.
std::vector<Damage> find_damage(const std::string& folder);

}  // namespace trireme::format
