#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/layout/positions.h"

namespace trireme::nn {

/// Where in the training the rows of a batch stand. Random numbers depend on these logical
/// coordinates and never on a rank, so that dropout is the same on every mesh.
struct Where {
  int64_t step = 0;
  int64_t micro = 0;
  std::vector<int64_t> sample_ids = {};  ///< one per row
  Positions positions = {};              ///< of the columns that this rank has
  /// If the ranks of the tensor axis have a part of the positions each (sequence parallelism):
  /// those of all of them together.
  std::optional<Positions> cut_from = {};
  /// int64 [rows, columns]: at which position of its row the document of each position begins.
  /// Attention does not look at earlier ones. The columns are those of `cut_from`, where there is
  /// one. Undefined: a row is one document.
  at::Tensor documents = {};
  /// One position, as a number on the device, in place of `positions`: for a call that is recorded
  /// once and repeated at other positions (infer::Decoder on a GPU).
  at::Tensor moving = {};
  bool recomputing = false;  ///< true when backward recomputes the call
  /// What each row counts in the loss, over all of its positions: a loss of a layer's own is
  /// weighted by it. Empty: each position counts as one.
  std::vector<double> row_weights = {};
  /// What losses are multiplied by before backward, so that small gradients do not vanish in
  /// float16: one number on the device. Undefined: 1. A layer that adds a loss of its own to the
  /// model's must multiply its gradient by it.
  at::Tensor loss_scale = {};
};

/// How to compute a tensor again, so that backward need not keep it.
struct Remake {
  std::vector<at::Tensor> from;  ///< tensors that backward keeps in any case
  /// Returns the tensor again. It depends on `from` alone. It is differentiable, or it refuses to
  /// be called where gradients are on.
  std::function<at::Tensor(const std::vector<at::Tensor>& from)> make;
};

/// What layers hand on: one or more tensors, and where they stand.
struct Flow {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<const Where> where;
  /// How to compute x() again; nullptr: whoever needs it in backward keeps it. It belongs to these
  /// values of x() in this graph, so a new Flow has none.
  std::shared_ptr<const Remake> remake = nullptr;

  Flow(at::Tensor x, std::shared_ptr<const Where> at = nullptr)  // NOLINT: meant to convert
      : tensors{std::move(x)}, where(std::move(at)) {}
  Flow(std::vector<at::Tensor> all, std::shared_ptr<const Where> at)
      : tensors(std::move(all)), where(std::move(at)) {}

  /// The first tensor; for most layers the only one.
  const at::Tensor& x() const { return tensors.front(); }

  /// The same values as leaves of a new graph. Those that required a gradient still do.
  Flow detached() const {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& one : tensors)
      leaves.push_back(one.defined() ? one.detach().requires_grad_(one.requires_grad()) : one);
    return {std::move(leaves), where};
  }

  /// The first tensor alone, and how to compute it again.
  Flow first() const {
    Flow one(x(), where);
    one.remake = remake;
    return one;
  }

  /// Another tensor with the same Where.
  Flow with(at::Tensor y) const { return {std::move(y), where}; }
};

using FlowFunction = std::function<Flow(Flow)>;

}  // namespace trireme::nn
