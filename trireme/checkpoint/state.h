#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
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
  bool first = true;     ///< false: a rank before this one, of the same replica, holds the same
  bool sharded = false;  ///< the ranks of the shard axis hold other pieces, not the same
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

/// A rank's place among those that hold the same items.
struct Place {
  int rank = 0, size = 1;
};

/// Which of `items` this rank writes: the largest first, to whoever has least. `all`: among the
/// ranks that hold the same of what is not sharded; `alike`: of what is.
std::vector<Item> share(const std::vector<Item>& items, Place all, Place alike);

}  // namespace trireme::checkpoint
