#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace trireme::train {

/// mkdir -p. Throws ConfigError that names the folder that cannot be made.
void make_folders(const std::string& path);

/// Locks a folder for one run while this object lives: two runs in it would mistake each other's
/// files for their own. One process of a run has it.
class RunFolder {
 public:
  /// Makes the folder. Throws ConfigError if it cannot be written, or another run is in it.
  explicit RunFolder(const std::string& path);

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> lock_;
};

}  // namespace trireme::train
