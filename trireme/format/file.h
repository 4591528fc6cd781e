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

/// An open file. Everything that goes wrong is a CheckpointError with the path and the system's
/// reason; interrupted and partial calls are continued.
class File {
 public:
  static File open(const std::string& path);
  /// Made anew, or emptied.
  static File create(const std::string& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::string& path() const { return path_; }
  int64_t bytes() const;
  /// Reads exactly `bytes` at `offset`; `what` is named if they are not there.
  void read(int64_t offset, int64_t bytes, void* to, std::string_view what) const;
  void write(const void* from, int64_t bytes);
  /// Past the page cache from now on, where the file system can: what is written must then lie, be
  /// and begin at multiples of kDirectAlign. Says whether it is so.
  bool set_direct(bool direct);
  static constexpr int64_t kDirectAlign = 4096;
  /// fsync and close: after this the bytes are on the disk, or it has thrown.
  void finish();

 private:
  bool leave_direct();
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

/// Whether a regular file is there, by this name or a link.
bool is_file(const std::string& path);

/// All of a file of at most `most_bytes`.
std::string read_file(const std::string& path, int64_t most_bytes);

/// Writes a whole file and fsyncs it.
void write_file(const std::string& path, std::string_view text);

}  // namespace trireme::format
