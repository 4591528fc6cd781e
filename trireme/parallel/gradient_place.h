#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/parallel/parameter_shard.h"

namespace trireme::parallel {

/// Which elements of a parameter one gradient tensor has. A reducer that keeps something for every
/// element (a residual) needs it to find the element again: in another bucket, after a restart, on
/// another mesh.
struct GradientPlace {
  std::string name;                  ///< of the parameter
  std::vector<int64_t> shape;        ///< of the gradient on this rank; a matrix stays one
  std::vector<Piece> pieces;         ///< its boxes in the whole parameter
  std::vector<LocalBox> boxes = {};  ///< the same in the gradient; empty: it is one piece, flat
  core::DType dtype = core::DType::Float32;
  /// Of the ranks whose gradients of these elements are summed, this is the first.
  bool first = true;
  /// Other ranks compute the same gradient, each for itself, and no sum adds them up. It must
  /// travel as it is: a compressor may give each of these ranks other bits.
  bool repeats = false;
  bool shard = false;  ///< it is summed already over the ranks that share the state

  /// Tells it from all other places on this rank: "h.0.attn.weight@0,0:24,24:0".
  std::string key() const;
  int64_t numel() const;
  /// Piece `i` of a tensor of this shape. Shares its memory.
  at::Tensor part(const at::Tensor& tensor, std::size_t i) const;
};

using GradientPlacePtr = std::shared_ptr<const GradientPlace>;

/// Where a piece lies: "offset:shape:begin". A residual is saved under it.
std::string to_text(const Piece& piece);

/// All of a rank's own part of a parameter.
GradientPlacePtr place_of(const ParameterShard& whole, const Mesh& mesh);
/// One box of a parameter before it is cut into shards, and this rank's shard of it.
GradientPlacePtr place_of(const ShardedParameter& parameter, const ShardedBox& box,
                          const Mesh& mesh);
GradientPlacePtr shard_place_of(const ShardedParameter& parameter, const ShardedBox& box);

}  // namespace trireme::parallel
