#pragma once

#include <string>
#include <vector>

namespace trireme::format {

bool is_directory(const std::string& path);

/// The entries of a folder, sorted by their bytes, so that every host has them in the same order.
/// Hidden ones are left out. Throws Error if it cannot be read.
struct Listing {
  std::vector<std::string> files, folders;  ///< names, without the folder's
};
Listing list_directory(const std::string& path);

}  // namespace trireme::format
