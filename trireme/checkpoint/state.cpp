#include "trireme/checkpoint/state.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::checkpoint {

Item whole(const std::string& name, const at::Tensor& tensor) {
  Piece piece;
  piece.name = name;
  piece.whole = piece.shape = tensor.sizes().vec();
  piece.offset.assign(piece.whole.size(), 0);
  piece.count = tensor.numel();
  return {std::move(piece), tensor.detach()};
}

std::string_view dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return "F64";
    case at::kFloat: return "F32";
    case at::kHalf: return "F16";
    case at::kBFloat16: return "BF16";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default:
      throw CheckpointError(
          fmt::format("a checkpoint cannot hold tensors of dtype {}", c10::toString(dtype)));
  }
}

std::optional<at::ScalarType> floating_dtype(std::string_view name) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16})
    if (dtype_name(dtype) == name) return dtype;
  return std::nullopt;
}

int64_t State::bytes() const {
  int64_t total = 0;
  for (const Item& item : items) total += static_cast<int64_t>(item.tensor.nbytes());
  return total;
}

std::vector<Item> share(const std::vector<Item>& items, Place all, Place alike) {
  std::vector<std::size_t> mine;
  for (const bool sharded : {false, true}) {
    const Place place = sharded ? alike : all;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (items[i].first && items[i].sharded == sharded) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return items[a].tensor.nbytes() > items[b].tensor.nbytes();
    });
    std::vector<std::size_t> load(static_cast<std::size_t>(place.size));
    for (std::size_t i : order) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += items[i].tensor.nbytes();
      if (least - load.begin() == place.rank) mine.push_back(i);
    }
  }
  std::sort(mine.begin(), mine.end());
  std::vector<Item> picked;
  for (std::size_t i : mine) picked.push_back(items[i]);
  return picked;
}

}  // namespace trireme::checkpoint
