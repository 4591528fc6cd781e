#include "trireme/parallel/kept.h"

namespace trireme::parallel {

namespace {

Piece whole_box(const nn::Parameter& parameter, const Box& box) {
  return {parameter.name, parameter.layout.whole(), box.offset, box.shape, 0, box.numel()};
}

/// Where an element of the rank's own tensor lies in its memory.
int64_t flat(const std::vector<int64_t>& at, at::IntArrayRef shape) {
  int64_t index = 0;
  for (std::size_t d = 0; d < at.size(); ++d) index = index * shape[d] + at[d];
  return index;
}

/// Does a box lie in one stretch of the rank's own tensor?
bool lies_together(const Held& held, at::IntArrayRef shape) {
  bool inner_whole = true;  // are all dims behind this one whole?
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (!inner_whole && held.box.shape[d] != 1) return false;
    inner_whole = inner_whole && held.box.shape[d] == shape[d];
  }
  return true;
}

}  // namespace

Kept keep_whole(const nn::Parameter& parameter, std::size_t index, const Mesh& mesh) {
  Kept kept{.name = parameter.name,
            .parameter = index,
            .tensor = parameter.tensor,
            .held = parameter.layout.held(mesh.coord(), mesh.degrees()),
            .pieces = {}};
  for (const Held& held : kept.held) kept.pieces.push_back(whole_box(parameter, held.box));
  return kept;
}

ShardedParameter shard(const nn::Parameter& parameter, const Coord& coord, const Degrees& degrees) {
  ShardedParameter result;
  const auto [size, place] = parameter.layout.sharers(coord, degrees);
  const auto shape = parameter.layout.local_shape(coord, degrees);
  for (const Held& held : parameter.layout.held(coord, degrees)) {
    ShardedBox box{held, whole_box(parameter, held.box), result.numel, {}};
    for (int rank = 0; rank < size; ++rank)
      box.counts.push_back(Layout::flat_part(box.numel(), size, rank).count);
    const Part mine = Layout::flat_part(box.numel(), size, place);
    box.piece.begin = mine.begin;
    box.piece.count = mine.count;
    result.plain = result.plain && lies_together(held, shape) && flat(held.at, shape) == box.begin;
    result.numel += box.numel();
    result.boxes.push_back(std::move(box));
  }
  return result;
}

}  // namespace trireme::parallel
