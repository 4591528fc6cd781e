#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme::cuda {

/// Results that are slow to compute, kept on disk from run to run: compiled kernels, and the
/// fastest algorithm of a matrix product. The folder is $TRIREME_CACHE, else
/// $XDG_CACHE_HOME/trireme, else ~/.cache/trireme. If it cannot be read or written, nothing is
/// kept.
class DiskCache {
 public:
  explicit DiskCache(std::string kind) : kind_(std::move(kind)) {}

  std::optional<std::string> find(std::string_view key) const;

  /// Keeps a value and returns the one that is kept. If another process was faster, that is its
  /// value: all ranks of a host go on with the same one.
  std::string keep(std::string_view key, std::string value) const;

 private:
  std::string path_of(std::string_view key) const;

  std::string kind_;
};

}  // namespace trireme::cuda
