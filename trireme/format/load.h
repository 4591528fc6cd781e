#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trireme/format/index.h"
#include "trireme/format/safetensors.h"
#include "trireme/format/tensor_source.h"

namespace trireme::format {

/// A saved step, from which any part of any tensor can be read, however it was cut when it was
/// saved. Everything is verified as it is read; damage is a CheckpointError. Not thread-safe: open
/// one for each thread. Memory: the index, and 1 MiB for each of at most kMostOpen files.
class Checkpoint : public TensorSource {
 public:
  /// `folder`: .../step-00000500. Reads and validates the index, and that it is complete.
  explicit Checkpoint(const std::string& folder);

  static constexpr size_t kMostOpen = 64;

  const std::string& folder() const { return folder_; }
  const Index& index() const { return index_; }

  std::optional<Tensor> tensor(const std::string& name) const override;
  /// What is not as saved is a ConfigError: the checkpoint is then of another model, not damaged.
  /// Reads only the blocks that hold elements of the piece.
  void read(const Piece& wanted, std::string_view dtype, void* to) override;

 private:
  struct OpenFile {
    SafetensorsReader reader;
    int64_t used;  ///< the larger, the more recently
  };

  /// The file's reader. Opening it may close the one that was used least recently.
  SafetensorsReader& reader(const std::string& file, const std::string& tensor);
  const TensorInfo& find(const Piece& wanted, std::string_view dtype) const;
  /// Copies the elements that `stored` has of `wanted`; returns how many.
  int64_t copy(const Piece& wanted, const StoredPiece& stored, std::string_view dtype, char* to);

  std::string folder_;
  Index index_;
  std::map<std::string, OpenFile> open_;
  int64_t uses_ = 0;
};

/// The piece that is all of a tensor.
Piece whole_piece(const std::string& name, const std::vector<int64_t>& shape);

/// The file entry of a piece: a whole tensor under its own name, so that other readers of
/// safetensors find it; a part of one as a 1-d tensor, under its name and place.
Entry entry_of(const Piece& piece, std::string_view dtype);

}  // namespace trireme::format
