#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trireme/format/index.h"
#include "trireme/format/safetensors.h"

namespace trireme::format {

/// A saved step, from which any cut of any tensor can be read, however it was cut when it was
/// saved. What is read has been verified. Errors are CheckpointErrors. Not for several threads at
/// once; open it once for each instead.
class Checkpoint {
 public:
  /// `folder`: .../step-00000500. Reads and validates the index, and that it is complete.
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Index& index() const { return index_; }

  /// Fills `to` with the piece's elements, in their row-major order. The name, the shape of the
  /// whole and the dtype must be as they were saved.
  void read(const Piece& wanted, std::string_view dtype, void* to);

 private:
  /// The file's reader, opened at its first use.
  SafetensorsReader& reader(const std::string& file);
  const TensorInfo& find(const Piece& wanted, std::string_view dtype) const;
  /// Copies what `stored` has of `wanted`; how many elements that were.
  int64_t copy(const Piece& wanted, const StoredPiece& stored, std::string_view dtype, char* to);

  std::string folder_;
  Index index_;
  std::map<std::string, SafetensorsReader> readers_;
};

/// The piece that is all of a tensor.
Piece whole_piece(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace trireme::format
