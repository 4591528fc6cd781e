#include "trireme/nn/tensor_region.h"

#include <utility>

#include "trireme/core/error.h"

namespace trireme::nn {

namespace F = functional;

namespace {

constexpr int64_t kPositions = 1;  // the dim

TensorInFlight ready(const at::Tensor& x) {
  return {comm::Work(), [x] { return x; }};
}

}  // namespace

int64_t TensorRegion::positions(const Flow& in) const {
  if (!cuts_positions()) return in.x().dim() > kPositions ? in.x().size(kPositions) : 0;
  core::check(
      in.where != nullptr && in.where->cut_from.has_value(),
      "a layer under sequence parallelism was given positions that are not cut: pass on the "
      "Flow of the layer before, not only its tensor");
  return in.where->cut_from->count();
}

int64_t TensorRegion::positions_to_cut(const at::Tensor& x) const {
  if (!cuts_positions()) return 0;
  core::check(x.dim() > 2,
              "sequence parallelism cuts the positions of [rows, positions, features], but this "
              "layer makes {} dims; use Sequence::Whole",
              x.dim());
  return x.size(kPositions);
}

std::shared_ptr<const Where> TensorRegion::entered(const Flow& in) const {
  if (!cuts_positions()) return in.where;
  Where whole = *in.where;
  whole.positions = *std::exchange(whole.cut_from, std::nullopt);
  return std::make_shared<const Where>(std::move(whole));
}

std::shared_ptr<const Where> TensorRegion::left(const Flow& in, int64_t positions) const {
  if (!cuts_positions()) return in.where;
  Where part = in.where != nullptr ? *in.where : Where{};
  core::check(!part.cut_from.has_value(),
              "sequence parallelism: positions {} are one rank's part already and cannot be cut "
              "again",
              to_string(part.positions));
  part.cut_from = part.positions.of(positions);
  part.positions = part.cut_from->narrow(even_range(positions, size(), group_.rank()));
  return std::make_shared<const Where>(std::move(part));
}

Flow TensorRegion::enter(const Flow& in) const {
  return {enter(in.x(), positions(in)), entered(in)};
}

Flow TensorRegion::leave(const Flow& in) const {
  return {leave(in.x()), left(in, positions_to_cut(in.x()))};
}

at::Tensor TensorRegion::enter(const at::Tensor& x, int64_t positions) const {
  return cuts_positions() ? F::gather(x, kPositions, group_, positions) : F::fan_out(x, group_);
}

at::Tensor TensorRegion::leave(const at::Tensor& x) const {
  return cuts_positions() ? F::scatter(x, kPositions, group_) : F::fan_in(x, group_);
}

TensorInFlight TensorRegion::start_enter(const at::Tensor& x, int64_t positions) const {
  return cuts_positions() ? start_all_gather(x, kPositions, positions, group_) : ready(x);
}

TensorInFlight TensorRegion::start_leave(const at::Tensor& x) const {
  if (size() == 1) return ready(x);
  return cuts_positions() ? start_reduce_scatter(x, kPositions, group_)
                          : start_all_reduce(x, group_);
}

}  // namespace trireme::nn
