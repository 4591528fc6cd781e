#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace trireme::format {

/// A file mapped into memory, read-only. Throws Error if it cannot be opened or is empty.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}

  const std::string& path() const { return path_; }
  const char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  /// Throws Error if the file has been cut off since: to touch what is gone would be a SIGBUS.
  void check_whole() const;

  /// The number at `offset`, which need not be aligned.
  template <class T>
  T at(int64_t offset) const {
    T value;
    std::memcpy(&value, data_ + offset, sizeof(T));
    return value;
  }

 private:
  std::string path_;
  int fd_ = -1;
  const char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace trireme::format
