#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace trireme::train {

/// mkdir -p. Throws ConfigError with the folder that cannot be made.
void make_folders(const std::string& path);

/// A folder that is one run's while this lives: two runs in it would take each other's files for
/// their own. One process of a run has it.
class RunFolder {
 public:
  /// Makes the folder. Throws ConfigError if it cannot be written, or another run is in it.
  explicit RunFolder(const std::string& path);

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> lock_;
};

}  // namespace trireme::train
