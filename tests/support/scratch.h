#pragma once

#include <ftw.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <system_error>

#include "support/sentence.h"

namespace trireme::test {

/// A folder of its own that is gone afterwards. System calls, not std::filesystem: a libtorch with
/// CUDA exports one that crashes.
class Scratch {
 public:
  Scratch() {
    std::string pattern = "/tmp/trireme_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::system_error(errno, std::generic_category());
    path_ = pattern;
  }
  ~Scratch() {
    ::nftw(
        path_.c_str(),
        [](const char* path, const struct stat*, int, struct FTW*) { return ::remove(path); }, 16,
        FTW_DEPTH | FTW_PHYS);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string random_bytes(int64_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string bytes(static_cast<size_t>(count), '\0');
  for (char& each : bytes) each = static_cast<char>(random());
  return bytes;
}

}  // namespace trireme::test
