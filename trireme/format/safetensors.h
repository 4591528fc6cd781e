#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/format/checksums.h"
#include "trireme/format/file.h"

namespace trireme::format {

/// The safetensors format, as Hugging Face defines it:
///
///     8 bytes        H, little-endian
///     H bytes        {"__metadata__": {...}, "w": {"dtype": "F32", "shape": [2, 3],
///                     "data_offsets": [0, 24]}, ...}, padded with spaces (here to 8 + H = 64 n)
///     the rest       the tensors' elements, row-major, one after the other without holes
struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0, bytes = 0;  ///< in the file, not in the data part; the writer fills them in

  bool operator==(const Entry&) const = default;
};

using Metadata = std::map<std::string, std::string>;

/// Writes one file: the entries are given first, then the bytes of all tensors are appended in that
/// order, in parts of any size. Checksums are taken while writing; nothing is read back. Every
/// failure of the disk is a CheckpointError with the file and the reason.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<Entry> entries,
                    const Metadata& metadata = {});

  const std::vector<Entry>& entries() const { return entries_; }
  void append(const void* from, int64_t bytes);
  /// Writes what is buffered and fsyncs. Before that the file is not complete.
  FileInfo finish();

 private:
  void add(const void* from, int64_t bytes);
  void put_staged();

  File file_;
  std::vector<Entry> entries_;
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> staged_;  ///< a few blocks, aligned for O_DIRECT
  int64_t staged_bytes_ = 0;
  bool direct_ = false;
  FileInfo written_;
  int64_t left_bytes_ = 0;
};

/// Reads ranges of a file. Opening validates the whole header and throws CheckpointError with the
/// file and the tensor. Not thread-safe.
class SafetensorsReader {
 public:
  /// A file without checksums, such as another program's.
  explicit SafetensorsReader(const std::string& path);
  /// A file whose every byte is verified before it is used, the header too. `wanted`: the tensor
  /// that it is opened for, which the message names if the header is damaged.
  SafetensorsReader(const std::string& path, const FileInfo& expected,
                    std::string_view wanted = "");

  /// In the order of their bytes.
  const std::vector<Entry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }
  /// The entry of that name, or nullptr.
  const Entry* find(std::string_view name) const;
  /// Bytes [begin_byte, begin_byte + bytes) of a tensor.
  void read(std::string_view name, int64_t begin_byte, int64_t bytes, void* to);

 private:
  void open(std::string_view what);
  void read_at(int64_t offset, int64_t bytes, void* to, std::string_view what);

  std::variant<File, VerifiedFile> file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> places_;
  Metadata metadata_;
};

}  // namespace trireme::format
