#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/format/mapped_file.h"

namespace trireme::format {

/// An IDX file of bytes: numbers are big-endian.
///
///     00 00 08 | d | sizes, uint32 each, d of them | bytes, the last size varies fastest
///
/// A plain file is mapped; a .gz file is unpacked into memory.
class IdxFile {
 public:
  IdxFile(const std::string& path, int dims);

  const std::string& path() const { return file_.path(); }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  /// Row `index` of the first size.
  const uint8_t* row(int64_t index) const;
  int64_t row_bytes() const { return row_bytes_; }
  /// Throws if the mapped file has been cut off since.
  void check_whole() const;

 private:
  void check_magic(const char* header, int dims) const;
  void read_sizes(const char* header, int dims);

  MappedFile file_;
  std::optional<std::string> unpacked_;  ///< of a .gz file, without the header
  std::vector<int64_t> sizes_;
  int64_t row_bytes_ = 1;
};

}  // namespace trireme::format
