#pragma once

#include <vector>

#include "trireme/comm/op.h"
#include "trireme/layout/reduction.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

/// The part of a parameter's state that a rank keeps from step to step: all of the rank's own
/// boxes, or its shard of one of them. Optimizers update it, norms count it, checkpoints hold it.
///
///   weight     what layers compute with, in the compute dtype
///   master     what the optimizer updates; the same tensor as `weight` where the dtypes agree
///   gradient   the master's .grad, after `finish`; at least float32. (Only with Divide::Later it
///   may
///              have 16 bits: on a GPU, if nothing was added to what backward gave)
struct ParameterShard {
  std::string name;           ///< of the parameter
  std::size_t parameter = 0;  ///< its index in the list of parameters
  std::size_t box = 0;        ///< if sharded: which box of the parameter it is a part of
  at::Tensor weight, master;
  std::vector<Reduction> reductions;  ///< one for each of its boxes
  std::vector<Piece> pieces;          ///< the same boxes, with their offsets in the whole tensor
  bool sharded = false;               ///< it is a flat range of one box

  at::Tensor& gradient() const { return master.mutable_grad(); }

  /// Piece `i` of the master, or of another tensor of its shape: a gradient, an optimizer's state.
  at::Tensor part(const at::Tensor& tensor, std::size_t i) const {
    return sharded ? tensor.detach() : nn::part_of(tensor, reductions[i].box);
  }
};

/// Whether an optimizer that has updated the masters has also rounded them to the weights.
enum class Weights : uint8_t { Stale, Rounded };

/// All of the rank's own part of a parameter. `master`: undefined, if it is the weight itself.
ParameterShard whole_shard(const nn::Parameter& parameter, std::size_t index, const Mesh& mesh,
                           const Policy& policy, const at::Tensor& master = {});

/// One box of a rank's own tensor, cut into flat ranges for the ranks that share its state.
struct ShardedBox {
  Reduction reduction;
  Piece piece;        ///< this rank's; may be empty
  int64_t begin = 0;  ///< of the box, where the boxes of the parameter lie one after the other
  comm::Rows counts;  ///< elements of each rank of `reduction.sums.shards`

  const LocalBox& local() const { return reduction.box; }
  int64_t numel() const { return reduction.box.box.numel(); }
};

/// The boxes of a parameter.
struct ShardedParameter {
  std::vector<ShardedBox> boxes;
  int64_t numel = 0;
  ParameterDtypes dtypes = {};
  bool plain = true;  ///< the rank's own tensor has the same memory order as its boxes
};
ShardedParameter shard(const nn::Parameter& parameter, const Coord& coord, const Degrees& degrees,
                       const Policy& policy);

/// This rank's shard of box `b`, with its memory.
ParameterShard box_shard(const nn::Parameter& parameter, std::size_t index,
                         const ShardedParameter& cut, std::size_t b, const at::Tensor& weight,
                         const at::Tensor& master);

/// nn::random_bits for the elements of a shard, in the shape of its master.
at::Tensor random_bits(const ParameterShard& shard, const nn::Parameter& parameter, int64_t step);

}  // namespace trireme::parallel
