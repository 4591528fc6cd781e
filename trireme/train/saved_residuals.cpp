#include "trireme/train/saved_residuals.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <charconv>
#include <optional>

#include "trireme/checkpoint/state.h"
#include "trireme/nn/parameters.h"

namespace trireme::train {

namespace {

std::vector<int64_t> numbers_in(std::string_view text) {
  std::vector<int64_t> all;
  while (!text.empty()) {
    int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    all.push_back(number);
    const auto comma = text.find(',');
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
  }
  return all;
}

/// The place that a residual's name tells, without the shape of the whole and the number of
/// elements; nothing for another tensor, and for a residual that another rank keeps too.
std::optional<Piece> place_in(std::string_view name) {
  if (!name.starts_with("residual/") && !name.starts_with("shard_residual/") &&
      !name.starts_with("unsent/"))
    return {};
  const auto rank = name.find("/rank.");
  const auto parameter = name.find('/', rank + 1);
  const auto place = name.rfind('@');
  if (rank == name.npos || parameter == name.npos || place == name.npos) return {};
  if (name.substr(rank, parameter - rank).ends_with(".repeat")) return {};
  const std::string_view offset = name.substr(place + 1);
  const auto shape = offset.find(':'), begin = offset.rfind(':');
  if (shape == offset.npos) return {};
  Piece piece{.name = std::string(name.substr(parameter + 1, place - parameter - 1)),
              .whole = {},
              .offset = numbers_in(offset.substr(0, shape)),
              .shape = numbers_in(offset.substr(shape + 1, begin - shape - 1))};
  piece.begin = numbers_in(offset.substr(begin + 1)).front();
  return piece;
}

/// Calls `use` with the elements of a piece in a tensor of the whole parameter, flat; they are
/// written back.
template <class Use>
void with_piece(const at::Tensor& whole, const Piece& piece, const Use& use) {
  const at::Tensor box = nn::box_of(whole, {piece.offset, piece.shape});
  const at::Tensor flat = box.contiguous().view({-1});
  use(flat.narrow(0, piece.begin, piece.count));
  box.copy_(flat.view(box.sizes()));
}

}  // namespace

std::string name_of(const std::string& prefix, const parallel::ReducerState& state,
                    const Mesh& mesh) {
  const std::string rank =
      fmt::format("{}{}/{}/rank.{}{}/{}", prefix, state.kind, to_string(mesh.degrees()),
                  mesh.world().rank(), state.repeats ? ".repeat" : "", state.parameter);
  return state.piece ? fmt::format("{}@{}", rank, parallel::to_text(*state.piece)) : rank;
}

void SavedResiduals::take(const std::string& prefix,
                          const std::function<double(const Taken&)>& scale) {
  for (const auto& [name, info] : from_.index().tensors) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    auto piece = place_in(rest);
    if (!piece) continue;
    piece->count = Box{{}, info.shape}.numel();
    const std::string parameter = piece->name;
    by_parameter_[parameter].push_back(
        {name, std::move(*piece),
         scale ? scale({rest.substr(0, rest.find('/')), parameter}) : 1.0});
  }
}

/// In float64: the sum over many ranks must not lose what they had not sent.
at::Tensor SavedResiduals::sum_of(const std::vector<Residual>& residuals,
                                  const std::vector<int64_t>& shape) const {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (const Residual& one : residuals) {
    const auto& info = from_.index().tensors.at(one.tensor);
    const auto dtype = checkpoint::floating_dtype(info.dtype).value_or(at::kFloat);
    const at::Tensor part = at::empty({one.piece.count}, dtype);
    from_.read(format::whole_piece(one.tensor, info.shape), info.dtype, part.data_ptr());
    with_piece(sum, one.piece,
               [&](at::Tensor elements) { elements.add_(part.to(at::kDouble), one.scale); });
  }
  return sum;
}

void SavedResiduals::put(const std::vector<parallel::ReducerState>& states,
                         const std::function<bool(const parallel::ReducerState&)>& gets) const {
  const at::NoGradGuard guard;
  std::string summed;  // the states of a parameter follow each other
  at::Tensor sum;
  for (const parallel::ReducerState& one : states) {
    if (!one.piece) continue;
    const auto found = by_parameter_.find(one.parameter);
    if (found == by_parameter_.end() || !gets(one)) {
      one.tensor.zero_();
      continue;
    }
    if (summed != one.parameter) sum = sum_of(found->second, one.piece->whole);
    summed = one.parameter;
    with_piece(sum, *one.piece, [&](const at::Tensor& elements) {
      one.tensor.copy_(elements.view(one.tensor.sizes()));
    });
  }
}

}  // namespace trireme::train
