#pragma once

#include <torch/custom_class.h>

#include "trireme/comm/communicator.h"
#include "trireme/nn/collectives.h"
#include "trireme/nn/flow.h"

namespace trireme::nn {

/// Are activations between the layers that are cut whole on every rank of the tensor axis, or is
/// each rank's a part of the positions (Korthikanti et al. 2022)?
enum class Sequence : uint8_t { Whole, Cut };

/// The ranks that compute a layer together: the tensor axis, as the layer sees it. Between layers a
/// rank has what `leave` gave it; a layer whose weights are cut starts from what `enter` gives.
///
///                     Sequence::Whole        Sequence::Cut
///   enter   forward   nothing                all_gather of positions
///           backward  all_reduce             reduce_scatter
///   leave   forward   all_reduce             reduce_scatter of positions
///           backward  nothing                all_gather
class Region : public torch::CustomClassHolder {
 public:
  Region(comm::Communicator group, Sequence sequence)
      : group_(std::move(group)), sequence_(sequence) {}

  const comm::Communicator& group() const { return group_; }
  int size() const { return group_.size(); }
  bool cuts_positions() const { return sequence_ == Sequence::Cut && size() > 1; }

  // Differentiable, as often as one likes. Positions are dim 1; `positions` are all of the region.
  Flow enter(const Flow& in) const;
  Flow leave(const Flow& in) const;
  at::Tensor enter(const at::Tensor& x, int64_t positions) const;
  at::Tensor leave(const at::Tensor& x) const;

  // Their halves, without autograd, for who computes meanwhile.
  Moving start_enter(const at::Tensor& x, int64_t positions) const;
  Moving start_leave(const at::Tensor& x) const;

  /// How many positions there are in all; of the tensor where they are not cut.
  int64_t positions(const Flow& in) const;
  /// Of a tensor that is about to `leave`. Throws where positions are cut and it has none.
  int64_t positions_to_cut(const at::Tensor& x) const;
  std::shared_ptr<const Where> entered(const Flow& in) const;
  std::shared_ptr<const Where> left(const Flow& in, int64_t positions) const;

 private:
  comm::Communicator group_;
  Sequence sequence_;
};
using RegionPtr = c10::intrusive_ptr<Region>;

}  // namespace trireme::nn
