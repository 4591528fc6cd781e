#include "trireme/checkpoint/state.h"

#include <algorithm>
#include <map>
#include <tuple>

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

std::vector<Item> share(const std::vector<Item>& items, const Coord& coord,
                        const Degrees& degrees) {
  std::map<RankSet, std::vector<std::size_t>> by_ranks;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].writes) by_ranks[items[i].same].push_back(i);
  std::vector<std::size_t> mine;
  for (auto& [same, some] : by_ranks) {
    // Sort by what is the same on all ranks: they may list the same items in different orders.
    std::sort(some.begin(), some.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t i) {
        const Piece& piece = items[i].piece;
        return std::tuple(-static_cast<int64_t>(items[i].tensor.nbytes()), piece.name, piece.offset,
                          piece.begin);
      };
      return key(a) < key(b);
    });
    const Position position = position_in(same, coord, degrees);
    std::vector<std::size_t> load(static_cast<std::size_t>(position.count));
    for (std::size_t i : some) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += items[i].tensor.nbytes();
      if (least - load.begin() == position.index) mine.push_back(i);
    }
  }
  std::sort(mine.begin(), mine.end());
  std::vector<Item> picked;
  for (std::size_t i : mine) picked.push_back(items[i]);
  return picked;
}

}  // namespace trireme::checkpoint
