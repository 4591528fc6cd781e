#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/layout/even_part.h"

namespace trireme::nn {

/// Where in the training the rows of a batch stand: the logical coordinates that chance depends on.
/// The same for every mesh, so that dropout is too.
struct Where {
  int64_t step = 0;
  int64_t micro = 0;
  std::vector<int64_t> sample_ids = {};  ///< one per row
  int64_t seq_begin = 0;                 ///< of this rank's part of the sequence
  std::optional<Part> cut_from = {};     ///< the positions of which this is one rank's part, if so
  bool again = false;                    ///< computed once more, for backward
};

/// What layers hand on: one or more tensors, and where they stand. Nothing travels beside it.
struct Flow {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<const Where> where;

  Flow(at::Tensor x, std::shared_ptr<const Where> at = nullptr)  // NOLINT: meant to convert
      : tensors{std::move(x)}, where(std::move(at)) {}
  Flow(std::vector<at::Tensor> all, std::shared_ptr<const Where> at)
      : tensors(std::move(all)), where(std::move(at)) {}

  /// The tensor, where there is one.
  const at::Tensor& x() const { return tensors.front(); }

  /// The same values without the graph that made them; what needed a gradient still does, of its
  /// own.
  Flow detached() const {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& one : tensors)
      leaves.push_back(one.defined() ? one.detach().requires_grad_(one.requires_grad()) : one);
    return {std::move(leaves), where};
  }

  /// Another tensor at the same place.
  Flow with(at::Tensor y) const { return {std::move(y), where}; }
};

}  // namespace trireme::nn
