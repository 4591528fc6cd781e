#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/format/index.h"

namespace trireme::format {

/// A checkpoint is written by several processes: each writes a part, one file, and notes what is in
/// it; one of them makes the index of all notes.
struct PartItem {
  Piece piece;
  std::string dtype;  ///< as safetensors names it
  /// The elements of the piece, in their order, wherever they lie.
  std::vector<std::span<const std::byte>> memory = {};
};

/// Writes FOLDER/FILE and returns the note. `written` is called with the index of each item as soon
/// as its memory is not needed any more. Throws CheckpointError.
core::Json write_part(const std::string& folder, const std::string& file, int64_t step,
                      std::span<const PartItem> items,
                      const std::function<void(size_t)>& written = {});

/// The index of all parts. Throws CheckpointError if they do not make up all tensors.
Index index_of_parts(const std::string& folder, int64_t step, const std::vector<core::Json>& notes,
                     core::Json extra);

}  // namespace trireme::format
