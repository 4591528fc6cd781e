#pragma once

#include <vector>

#include "trireme/comm/op.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

/// What a rank keeps of a parameter from step to step: all of its own part, or a shard of that. It
/// is what an optimizer updates, what a norm counts and what a checkpoint holds.
struct Kept {
  std::string name;           ///< of the parameter
  std::size_t parameter = 0;  ///< in the list of whoever keeps it
  at::Tensor tensor;          ///< after a step's `finish` its .grad is there
  std::vector<Held> held;     ///< the boxes that it has; of a shard, the one that it is part of
  std::vector<Piece> pieces;  ///< the same, as places in the whole
  bool sharded = false;

  /// Piece `i` of the tensor, or of another of its shape: its gradient, an optimizer's state.
  at::Tensor part(const at::Tensor& alike, std::size_t i) const {
    return sharded ? alike.detach() : nn::part_of(alike, held[i]);
  }
};

/// All of the rank's own part.
Kept keep_whole(const nn::Parameter& parameter, std::size_t index, const Mesh& mesh);

/// One box of a rank's own tensor, cut into flat ranges for the ranks of the shard axis.
struct ShardedBox {
  Held held;
  Piece piece;        ///< this rank's; may be empty
  int64_t begin = 0;  ///< of the box, where the boxes of the parameter lie one by one
  comm::Rows counts;  ///< elements of each rank of the axis
  int64_t numel() const { return held.box.numel(); }
};

/// The boxes of a parameter.
struct ShardedParameter {
  std::vector<ShardedBox> boxes;
  int64_t numel = 0;
  bool plain = true;  ///< is the rank's own tensor its boxes one by one?
};
ShardedParameter shard(const nn::Parameter& parameter, const Coord& coord, const Degrees& degrees);

}  // namespace trireme::parallel
