#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/layout/piece.h"
#include "trireme/layout/reduction.h"

namespace trireme::checkpoint {

/// A tensor of a run's state, or this rank's piece of it: the tensor's elements, in their order,
/// are the piece's.
struct Item {
  Piece piece;
  at::Tensor tensor;
  RankSet same = same_stage();  ///< the ranks that hold the same: one of them writes it
  /// A checkpoint without it leaves the tensor as it is.
  bool optional = false;
};

/// All of a tensor.
Item whole(const std::string& name, const at::Tensor& tensor);

/// The name that safetensors has for a dtype.
std::string_view dtype_name(at::ScalarType dtype);

/// Of "F64", "F32", "F16" and "BF16", the dtype; nothing for others.
std::optional<at::ScalarType> floating_dtype(std::string_view name);

/// Everything that a checkpoint holds: tensors, and what is not a tensor.
struct State {
  std::vector<Item> items;
  core::Json extra = core::Json::object();

  int64_t bytes() const;
};

/// Which of `items` the rank at `coord` writes. Ranks that hold the same items deal them among
/// themselves: the largest first, to whoever has least.
std::vector<Item> share(const std::vector<Item>& items, const Coord& coord, const Degrees& degrees);

}  // namespace trireme::checkpoint
