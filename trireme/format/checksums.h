#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/units.h"
#include "trireme/format/file.h"

namespace trireme::format {

/// Checksums are per block of this size, so that a range of a file can be read and verified alone.
constexpr int64_t kBlockBytes = core::kMiB;

/// What a file must contain: its size, and XXH3-128 of each block (the last may be short).
struct FileInfo {
  int64_t bytes = 0;
  int64_t block_bytes = kBlockBytes;
  std::vector<std::string> checksums{};

  bool operator==(const FileInfo&) const = default;
};

/// How many blocks a file of `bytes` bytes has.
constexpr int64_t num_blocks(int64_t bytes) {
  return bytes / kBlockBytes + (bytes % kBlockBytes != 0 ? 1 : 0);
}

/// A file that returns only verified bytes. A block is hashed when it is first read:
///
///     block      0        1        2        3
///             |     ...|........|........|...     |     asked for
///              via scratch  read into place  via scratch
///
/// Not thread-safe.
class VerifiedFile {
 public:
  /// Throws CheckpointError if the file has another size.
  VerifiedFile(const std::string& path, FileInfo expected);

  const std::string& path() const { return file_.path(); }
  int64_t bytes() const { return expected_.bytes; }
  /// `what`: the tensor that is wanted, for the message when a block is damaged.
  void read(int64_t offset, int64_t bytes, void* to, std::string_view what);
  /// Hashes every block and returns the damaged ones.
  std::vector<int64_t> damaged_blocks();

 private:
  int64_t block_size(int64_t block) const;
  bool matches(int64_t block, const void* content) const;
  void verify(int64_t block, const void* content, std::string_view what);
  /// The block's bytes, verified, in the scratch space.
  const char* load(int64_t block, std::string_view what);

  File file_;
  FileInfo expected_;
  std::vector<bool> verified_;
  std::vector<char> scratch_;
  int64_t in_scratch_ = -1;
};

}  // namespace trireme::format
