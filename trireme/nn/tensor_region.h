#pragma once

#include <torch/custom_class.h>

#include "trireme/comm/communicator.h"
#include "trireme/nn/collectives.h"
#include "trireme/nn/flow.h"

namespace trireme::nn {

/// Between the layers that are cut, does each rank of the tensor axis have all positions of the
/// activations, or a part of them (sequence parallelism, Korthikanti et al. 2022)?
enum class Sequence : uint8_t { Whole, Cut };

/// A tensor-parallel region: the ranks that compute a layer together, and how activations enter and
/// leave it. A layer whose weights are cut begins with `enter` or ends with `leave`.
///
///                     Sequence::Whole        Sequence::Cut
///   enter   forward   nothing                all_gather of positions
///           backward  all_reduce             reduce_scatter
///   leave   forward   all_reduce             reduce_scatter of positions
///           backward  nothing                all_gather
class TensorRegion : public torch::CustomClassHolder {
 public:
  TensorRegion(comm::Communicator group, Sequence sequence)
      : group_(std::move(group)), sequence_(sequence) {}

  const comm::Communicator& group() const { return group_; }
  int size() const { return group_.size(); }
  bool cuts_positions() const { return sequence_ == Sequence::Cut && size() > 1; }

  // Differentiable any number of times. Dim 1 are the positions; `positions` counts those of all
  // ranks of the region.
  Flow enter(const Flow& in) const;
  Flow leave(const Flow& in) const;
  at::Tensor enter(const at::Tensor& x, int64_t positions) const;
  at::Tensor leave(const at::Tensor& x) const;

  // The same without autograd; other work can be done before `wait`.
  TensorInFlight start_enter(const at::Tensor& x, int64_t positions) const;
  TensorInFlight start_leave(const at::Tensor& x) const;

  /// The number of positions of all ranks of the region.
  int64_t positions(const Flow& in) const;
  /// The number of positions that `leave` will cut. Throws if it should cut positions and the
  /// tensor has none.
  int64_t positions_to_cut(const at::Tensor& x) const;
  /// The Where of a Flow after `enter` and after `leave`.
  std::shared_ptr<const Where> entered(const Flow& in) const;
  std::shared_ptr<const Where> left(const Flow& in, int64_t positions) const;

 private:
  comm::Communicator group_;
  Sequence sequence_;
};
using TensorRegionPtr = c10::intrusive_ptr<TensorRegion>;

}  // namespace trireme::nn
