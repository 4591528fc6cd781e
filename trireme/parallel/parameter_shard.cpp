#include "trireme/parallel/parameter_shard.h"

#include "trireme/parallel/precision.h"

namespace trireme::parallel {

namespace {

/// The position of an element in the memory of the rank's own tensor.
int64_t flat(const std::vector<int64_t>& at, at::IntArrayRef shape) {
  int64_t index = 0;
  for (std::size_t d = 0; d < at.size(); ++d) index = index * shape[d] + at[d];
  return index;
}

/// Is a box contiguous in the memory of the rank's own tensor?
bool is_contiguous(const LocalBox& held, at::IntArrayRef shape) {
  bool inner_whole = true;  // are all dims behind this one whole?
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (!inner_whole && held.box.shape[d] != 1) return false;
    inner_whole = inner_whole && held.box.shape[d] == shape[d];
  }
  return true;
}

}  // namespace

ParameterShard whole_shard(const nn::Parameter& parameter, std::size_t index, const Mesh& mesh,
                           const Policy& policy, const at::Tensor& master) {
  ParameterShard shard{
      .name = parameter.name,
      .parameter = index,
      .weight = parameter.tensor,
      .master = master.defined() ? master : parameter.tensor,
      .reductions = reductions_of(parameter.layout, {}, mesh.degrees(), mesh.coord(), policy,
                                  dtypes_of(parameter, policy.precision)),
      .pieces = {}};
  for (const Reduction& one : shard.reductions)
    shard.pieces.push_back(piece_of(parameter.name, parameter.layout, one));
  return shard;
}

ShardedParameter shard(const nn::Parameter& parameter, const Coord& coord, const Degrees& degrees,
                       const Policy& policy) {
  ShardedParameter result;
  result.dtypes = dtypes_of(parameter, policy.precision);
  const auto shape = parameter.layout.local_shape(coord, degrees);
  for (Reduction& one :
       reductions_of(parameter.layout, {}, degrees, coord, policy, result.dtypes)) {
    ShardedBox box{std::move(one), {}, result.numel, {}};
    const int64_t numel = box.numel();
    box.piece = piece_of(parameter.name, parameter.layout, box.reduction);
    for (int rank = 0; rank < box.reduction.shard.count; ++rank)
      box.counts.push_back(Layout::flat_range(numel, box.reduction.shard.count, rank).count);
    result.plain = result.plain && is_contiguous(box.local(), shape) &&
                   flat(box.local().at, shape) == box.begin;
    result.numel += numel;
    result.boxes.push_back(std::move(box));
  }
  return result;
}

ParameterShard box_shard(const nn::Parameter& parameter, std::size_t index,
                         const ShardedParameter& cut, std::size_t b, const at::Tensor& weight,
                         const at::Tensor& master) {
  return {.name = parameter.name,
          .parameter = index,
          .box = b,
          .weight = weight,
          .master = master,
          .reductions = {cut.boxes[b].reduction},
          .pieces = {cut.boxes[b].piece},
          .sharded = true};
}

at::Tensor random_bits(const ParameterShard& shard, const nn::Parameter& parameter, int64_t step) {
  at::Tensor all = at::empty(shard.master.sizes(), at::kShort);
  for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
    at::Tensor to = shard.part(all, i);
    to.copy_(nn::random_bits(parameter, shard.pieces[i], step).view(to.sizes()));
  }
  return all;
}

}  // namespace trireme::parallel
