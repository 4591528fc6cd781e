#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/format/checksums.h"
#include "trireme/layout/piece.h"

namespace trireme::format {

/// Where a part of a tensor is stored: entry `key` of `file` holds elements [begin, begin + count),
/// in row-major order, of the box {offset, shape} of the whole (all of the box: 0 and its numel).
struct StoredPiece {
  std::string file, key;
  std::vector<int64_t> offset, shape;
  int64_t begin = 0, count = 0;

  bool operator==(const StoredPiece&) const = default;
};

struct TensorInfo {
  std::string dtype;
  std::vector<int64_t> shape;  ///< of the whole
  std::vector<StoredPiece> pieces{};

  bool operator==(const TensorInfo&) const = default;
};

/// The index.json of a checkpoint: its tensors, where their pieces are stored, and the size and
/// checksums of every file. Nothing in it depends on ranks.
struct Index {
  int version = 1;
  int64_t step = 0;
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, FileInfo> files;
  core::Json extra = core::Json::object();  ///< what is saved besides tensors

  bool operator==(const Index&) const = default;

  int64_t total_bytes() const;  ///< of all files
};

constexpr const char* kIndexName = "index.json";
constexpr int kIndexVersion = 1;

core::Json json_of(const Index& index);
/// Validates everything but completeness. Throws CheckpointError that begins with `path`, or
/// ConfigError for a version newer than this program, which is not damage.
Index index_of(const core::Json& json, const std::string& path);

/// The text of index.json: json_of() and, last, a checksum of the rest, so that a changed digit in
/// `extra` is detected.
std::string to_text(const Index& index);
Index from_text(std::string_view text, const std::string& path);

/// The index of a checkpoint's folder.
Index read_index(const std::string& folder);

/// Throws CheckpointError with the first tensor that has an element which no piece, or more than
/// one, holds.
void check_complete(const Index& index, const std::string& path = kIndexName);

}  // namespace trireme::format
