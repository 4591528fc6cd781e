#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trireme/format/index.h"
#include "trireme/format/safetensors.h"

namespace trireme::format {

/// A saved step, from which any cut of any tensor can be read, however it was cut when it was
/// saved. What is read has been verified; damage is a CheckpointError. Not for several threads at
/// once; open it once for each instead. Memory: the index, and 1 MiB for each of at most
/// kMostOpen files.
class Checkpoint {
 public:
  /// `folder`: .../step-00000500. Reads and validates the index, and that it is complete.
  explicit Checkpoint(const std::string& folder);

  static constexpr size_t kMostOpen = 64;

  const std::string& folder() const { return folder_; }
  const Index& index() const { return index_; }

  /// Fills `to` with the piece's elements, in their row-major order. The name, the shape of the
  /// whole and the dtype must be as they were saved: a ConfigError says what is not, for then it is
  /// another model's and not damaged. Only the blocks that hold something of the piece are read.
  void read(const Piece& wanted, std::string_view dtype, void* to);

 private:
  struct Opened {
    SafetensorsReader reader;
    int64_t used;  ///< the larger the later
  };

  /// The file's reader; one that has not been used for long may be closed for it.
  SafetensorsReader& reader(const std::string& file, const std::string& tensor);
  const TensorInfo& find(const Piece& wanted, std::string_view dtype) const;
  /// Copies what `stored` has of `wanted`; how many elements that were.
  int64_t copy(const Piece& wanted, const StoredPiece& stored, std::string_view dtype, char* to);

  std::string folder_;
  Index index_;
  std::map<std::string, Opened> open_;
  int64_t uses_ = 0;
};

/// The piece that is all of a tensor.
Piece whole_piece(const std::string& name, const std::vector<int64_t>& shape);

/// How a piece lies in its file: all of a tensor under the tensor's name, so that others who read
/// safetensors find it; a part of one as a row of elements, under its name and place.
Entry entry_of(const Piece& piece, std::string_view dtype);

}  // namespace trireme::format
