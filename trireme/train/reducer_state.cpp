#include "trireme/train/reducer_state.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <charconv>

#include "trireme/comm/texts.h"
#include "trireme/nn/parameters.h"

namespace trireme::train {

namespace {

std::string name_of(const parallel::ReducerState& state, const Mesh& mesh) {
  const std::string rank =
      fmt::format("reducer/{}/{}/rank.{}{}/{}", state.kind, to_string(mesh.degrees()),
                  mesh.world().rank(), state.repeats ? ".repeat" : "", state.parameter);
  return state.piece ? fmt::format("{}@{}", rank, parallel::to_text(*state.piece)) : rank;
}

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

/// A saved residual: the name of its tensor in the checkpoint, and its piece of the parameter.
struct SavedResidual {
  std::string tensor;
  Piece piece;
};

/// The residuals of a checkpoint, by parameter; those that another rank has too are left out.
std::map<std::string, std::vector<SavedResidual>> residuals_in(const format::Index& index) {
  std::map<std::string, std::vector<SavedResidual>> all;
  for (const auto& [name, info] : index.tensors) {
    const std::string_view rest = name;
    if (!rest.starts_with("reducer/residual/") && !rest.starts_with("reducer/shard_residual/"))
      continue;
    const auto rank = rest.find("/rank.");
    const auto parameter = rest.find('/', rank + 1);
    const auto place = rest.rfind('@');
    if (rank == rest.npos || parameter == rest.npos || place == rest.npos) continue;
    if (rest.substr(rank, parameter - rank).ends_with(".repeat")) continue;
    const std::string_view offset = rest.substr(place + 1);
    const auto shape = offset.find(':'), begin = offset.rfind(':');
    if (shape == offset.npos) continue;
    Piece piece{.name = std::string(rest.substr(parameter + 1, place - parameter - 1)),
                .whole = {},
                .offset = numbers_in(offset.substr(0, shape)),
                .shape = numbers_in(offset.substr(shape + 1, begin - shape - 1))};
    piece.begin = numbers_in(offset.substr(begin + 1)).front();
    piece.count = Box{{}, info.shape}.numel();
    all[piece.name].push_back({name, std::move(piece)});
  }
  return all;
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

/// The residuals of a parameter, added up over all ranks that saved one.
at::Tensor sum_of(const std::vector<SavedResidual>& residuals, const std::vector<int64_t>& shape,
                  format::Checkpoint& saved) {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (const SavedResidual& one : residuals) {
    const auto& info = saved.index().tensors.at(one.tensor);
    const auto dtype = checkpoint::floating_dtype(info.dtype).value_or(at::kFloat);
    const at::Tensor part = at::empty({one.piece.count}, dtype);
    saved.read(format::whole_piece(one.tensor, info.shape), info.dtype, part.data_ptr());
    with_piece(sum, one.piece, [&](at::Tensor elements) { elements.add_(part); });
  }
  return sum;
}

/// Is this rank the first of those that sum a parameter's gradient, also among tied stages?
bool is_first(const parallel::ReducerState& state, const parallel::Attached& attached) {
  const Mesh& mesh = attached.mesh();
  const auto is_first_of = [&](const RankSet& set) {
    return set.holders.empty() || position_in(set, mesh.coord(), mesh.degrees()).index == 0;
  };
  const auto& shards = attached.shards();
  const auto own =
      std::ranges::find(shards, state.parameter, [](const auto& one) { return one.name; });
  return state.first &&
         (own == shards.end() || std::ranges::all_of(own->reductions.front().later, is_first_of));
}

}  // namespace

void add_reducer(checkpoint::State& state, parallel::Attached& attached) {
  parallel::Reducer& reducer = attached.reducer();
  for (const parallel::ReducerState& one : reducer.states()) {
    checkpoint::Item item = checkpoint::whole(name_of(one, attached.mesh()), one.tensor);
    item.same = {};
    item.optional = true;
    state.items.push_back(std::move(item));
  }
  const core::Json mine = reducer.state();
  if (mine.is_null()) return;  // on all ranks or on none
  core::Json ranks = core::Json::array();
  for (const std::string& text : comm::all_gather_texts(attached.mesh().world(), mine.dump()))
    ranks.push_back(core::parse_json(text, "what a rank's reducer keeps"));
  state.extra["reducer"] = ranks;
}

void restore_reducer(parallel::Attached& attached, format::Checkpoint& saved) {
  const core::Json& extra = saved.index().extra;
  const Mesh& mesh = attached.mesh();
  if (!extra.contains("reducer")) return;
  const core::Json& ranks = extra.at("reducer");
  // The same degrees with other stages are another mesh, too.
  const auto cut_of = [](const core::Json& of) { return of.value("pipeline_cut", core::Json()); };
  if (extra.value("bucket_mesh", "") == to_string(mesh.degrees()) &&
      cut_of(extra) == cut_of(attached.state()))
    return attached.reducer().restore(ranks.at(static_cast<std::size_t>(mesh.world().rank())));
  core::Json common = ranks.at(0);
  common.erase("chosen");
  attached.reducer().restore(common);
  const at::NoGradGuard guard;
  const auto residuals = residuals_in(saved.index());
  std::string summed;  // the states of a parameter follow each other
  at::Tensor sum;
  for (const parallel::ReducerState& one : attached.reducer().states()) {
    if (!one.piece) continue;
    const auto found = residuals.find(one.parameter);
    if (found == residuals.end() || !is_first(one, attached)) continue;
    if (summed != one.parameter) sum = sum_of(found->second, one.piece->whole, saved);
    summed = one.parameter;
    with_piece(sum, *one.piece, [&](const at::Tensor& elements) {
      one.tensor.copy_(elements.view(one.tensor.sizes()));
    });
  }
}

}  // namespace trireme::train
