#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/layout/piece.h"

namespace trireme::checkpoint {

/// A tensor of a run's state, or this rank's piece of it: the tensor's elements, in their order,
/// are the piece's.
struct Item {
  Piece piece;
  at::Tensor tensor;
  bool first = true;  ///< false: a rank before this one, of the same replica, holds the same
};

/// All of a tensor.
Item whole(const std::string& name, const at::Tensor& tensor);

/// The name that safetensors has for a dtype.
std::string_view dtype_name(at::ScalarType dtype);

/// Everything that a checkpoint holds: tensors, and what is not a tensor.
struct State {
  std::vector<Item> items;
  core::Json extra = core::Json::object();

  int64_t bytes() const;
};

/// Which of `items`, that `size` replicas hold alike, replica `rank` writes: the largest first, to
/// whoever has least.
std::vector<Item> share(const std::vector<Item>& items, int rank, int size);

}  // namespace trireme::checkpoint
