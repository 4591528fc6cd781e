#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/error.h"

namespace trireme::format {

/// A file cannot be opened or read just now: no descriptors or memory left, no permission, an error
/// of the disk. What is in it may well be whole.
class UnreadableError : public CheckpointError {
  using CheckpointError::CheckpointError;
};

/// An open file. Every failure is a CheckpointError with the path and the system's reason;
/// interrupted and partial calls are continued.
class File {
 public:
  static File open(const std::string& path);
  /// Makes the file, or empties it.
  static File create(const std::string& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  int64_t bytes() const;
  /// Reads exactly `bytes` at `offset`; `what` is named if they are not there.
  void read(int64_t offset, int64_t bytes, void* to, std::string_view what) const;
  void write(const void* from, int64_t bytes);
  /// Writes past the page cache (O_DIRECT) from now on, where the file system can. Memory, sizes
  /// and offsets must then be multiples of kDirectAlign. Returns whether it is in effect.
  bool set_direct(bool direct);
  static constexpr int64_t kDirectAlign = 4096;
  /// Fsyncs and closes. When it returns, the bytes are on the disk.
  void finish();

 private:
  bool leave_direct();
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

/// Whether the path is a regular file, or a link to one.
bool is_file(const std::string& path);

/// All of a file of at most `most_bytes`.
std::string read_file(const std::string& path, int64_t most_bytes);

/// Writes a whole file and fsyncs it.
void write_file(const std::string& path, std::string_view text);

}  // namespace trireme::format
