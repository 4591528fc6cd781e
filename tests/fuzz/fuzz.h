#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace trireme::fuzz {

/// A file in memory with a path of its own, for parsers that open one.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void put(const uint8_t* data, size_t bytes) const {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, data, bytes, 0) != static_cast<ssize_t>(bytes))
      std::abort();
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// What must hold whatever the input is.
inline void must(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace trireme::fuzz
