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

/// A tensor of a run's state, or this rank's piece of one. `tensor` has the elements of `piece`, in
/// their order.
struct Item {
  Piece piece;
  at::Tensor tensor;
  RankSet same = same_stage();  ///< the ranks that hold the same: one of them writes it
  bool writes = true;           ///< false: another replica writes it; this one only loads it
  /// If a checkpoint does not have it, loading leaves the tensor unchanged.
  bool optional = false;
};

/// An item that is a whole tensor.
Item whole(const std::string& name, const at::Tensor& tensor);

/// The name of a dtype in safetensors files.
std::string_view dtype_name(at::ScalarType dtype);

/// The dtype of "F64", "F32", "F16" and "BF16"; nullopt for other names.
std::optional<at::ScalarType> floating_dtype(std::string_view name);

/// Everything that a checkpoint holds: tensors, and other values as JSON.
struct State {
  std::vector<Item> items;
  core::Json extra = core::Json::object();

  int64_t bytes() const;
};

/// The items that the rank at `coord` writes. Ranks that hold the same items share the work: going
/// from the largest item to the smallest, each item goes to the rank with the fewest bytes so far.
std::vector<Item> share(const std::vector<Item>& items, const Coord& coord, const Degrees& degrees);

}  // namespace trireme::checkpoint
