#include "trireme/parallel/sharded_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/byte_block.h"

namespace trireme::parallel {

namespace {

/// Makes a separate group, so that gathers do not queue behind reductions.
comm::Communicator gather_group(const Mesh& mesh, const Policy& policy) {
  const auto& group = mesh.group(gradient_sums_of(Layout({1}), mesh.degrees(), policy).shards.axes);
  return group.split("gather", 0, group.rank());
}

/// The same for experts that are dealt to ranks.
comm::Communicator gather_group_of_experts(const Mesh& mesh, const Policy& policy) {
  const Layout any({mesh.size(Axis::Expert)}, {{Axis::Expert, 0}});
  const auto& all = mesh.group(gradient_sums_of(any, mesh.degrees(), policy).shards.axes);
  return all.split("gather experts", mesh.coord(Axis::Expert), all.rank());
}

std::vector<comm::Communicator> gather_groups(const Mesh& mesh, const Policy& policy,
                                              const Units& units) {
  std::vector<comm::Communicator> groups = {gather_group(mesh, policy)};
  if (std::ranges::any_of(units.units, &Unit::experts))
    groups.push_back(gather_group_of_experts(mesh, policy));
  return groups;
}

bool is_recomputing(const nn::Flow& in) {
  return in.where != nullptr && in.where->recomputing;
}

}  // namespace

ShardedWeights::ShardedWeights(std::vector<nn::Parameter> parameters, Units units, const Mesh& mesh,
                               const Policy& policy, Gathering gathering)
    : parameters_(std::move(parameters)),
      units_(std::move(units)),
      groups_(gather_groups(mesh, policy, units_)),
      tensors_(parameters_.size()),
      masters_(parameters_.size()),
      states_(units_.units.size()),
      local_(parameters_.size()),
      gathering_(std::move(gathering)),
      masters_on_host_(policy.precision.masters_on_host),
      self_(std::make_shared<ShardedWeights*>(this)) {
  for (const nn::Parameter& one : parameters_)
    shards_.push_back(shard(one, mesh.coord(), mesh.degrees(), policy));
  for (std::size_t u = 0; u < states_.size(); ++u) {
    for (std::size_t i : units_.units[u].parameters) {
      states_[u].offsets.push_back(states_[u].bytes);
      states_[u].bytes += padded(shards_[i].numel * item_bytes(i));
    }
  }
  attach();
}

ShardedWeights::~ShardedWeights() {
  *self_ = nullptr;
}

at::TensorOptions ShardedWeights::byte_options() const {
  const auto options =
      parameters_.empty() ? at::TensorOptions() : parameters_.front().tensor.options();
  return options.dtype(at::kByte).requires_grad(false);
}

int64_t ShardedWeights::shard_bytes(std::size_t parameter, const ShardedBox& box) const {
  return padded(box.piece.count * item_bytes(parameter));
}

std::string ShardedWeights::not_gathered(const std::string& name) {
  return fmt::format(
      "parameter '{}' is sharded and has no memory now: it is gathered only while its layer runs; "
      "use it inside of that layer's compute",
      name);
}

at::TensorOptions ShardedWeights::master_options() const {
  const at::TensorOptions here = byte_options();
  const bool moves = masters_on_host_ && here.device().is_cuda();
  return moves ? here.device(at::kCPU).pinned_memory(true) : here;
}

void ShardedWeights::make_masters() {
  const auto bytes_of = [](const ShardedBox& box, at::ScalarType dtype) {
    return padded(box.piece.count * static_cast<int64_t>(c10::elementSize(dtype)));
  };
  at::Tensor memory;
  for (const bool lays_out : {true, false}) {  // first counts the bytes
    int64_t begin = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const ParameterDtypes& dtypes = shards_[i].dtypes;
      const at::ScalarType dtype = scalar_type_of(dtypes.master);
      const bool separate =
          dtypes.master != dtypes.compute || (gathering_.in_place && is_narrow(i));
      for (std::size_t b = 0; b < shards_[i].boxes.size(); ++b) {
        const ShardedBox& box = shards_[i].boxes[b];
        if (!lays_out)
          masters_[i].push_back(separate ? tensor_on(memory, begin, {box.piece.count}, dtype)
                                         : tensors_[i][b]);
        if (separate) begin += bytes_of(box, dtype);
      }
    }
    if (lays_out && begin > 0) memory = at::empty({begin}, master_options());
  }
}

void ShardedWeights::round_masters() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (std::size_t b = 0; b < masters_[i].size(); ++b)
      if (!masters_[i][b].is_same(tensors_[i][b])) tensors_[i][b].copy_(masters_[i][b]);
}

void ShardedWeights::take_values() {
  make_masters();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& one = parameters_[i];
    const bool there = nn::is_bound(one.tensor);
    core::check(there || one.init.has_value(), "'{}' has neither values nor an initial rule",
                one.name);
    for (std::size_t b = 0; b < shards_[i].boxes.size(); ++b) {
      const ShardedBox& box = shards_[i].boxes[b];
      if (box.piece.count == 0) continue;
      if (there)
        masters_[i][b].copy_(nn::part_of(one.tensor, box.local())
                                 .reshape({-1})
                                 .narrow(0, box.piece.begin, box.piece.count));
      else
        nn::fill_piece(one, box.piece, masters_[i][b]);
    }
    nn::unbind(one.tensor, "");  // before the dtype changes: the values are not needed any more
    nn::set_dtype(one.tensor, dtype_of(i));
    nn::unbind(one.tensor, not_gathered(one.name));
  }
  round_masters();
}

/// The memory of a unit's n-th parameter in the unit's block: its boxes, one after the other.
at::Tensor ShardedWeights::packed(std::size_t unit, std::size_t nth) const {
  const std::size_t i = units_.units[unit].parameters[nth];
  return tensor_on(states_[unit].block, states_[unit].offsets[nth], {shards_[i].numel},
                   dtype_of(i));
}

void ShardedWeights::start_gather(std::size_t unit) {
  UnitState& state = states_[unit];
  if (state.bound || state.work) return;
  std::vector<at::Tensor> outs, ins;
  std::vector<comm::Rows> rows;
  const auto& members = units_.units[unit].parameters;
  for (std::size_t n = 0; n < members.size(); ++n) {
    const std::size_t i = members[n];
    const at::Tensor all = packed(unit, n);
    for (std::size_t b = 0; b < shards_[i].boxes.size(); ++b) {
      const ShardedBox& box = shards_[i].boxes[b];
      outs.push_back(all.narrow(0, box.begin, box.numel()));
      ins.push_back(tensors_[i][b]);
      rows.push_back(box.counts);
      if (!is_narrow(i)) continue;
      for (int64_t& count : rows.back()) count = gathering_.narrow.num_bytes(count, dtype_of(i));
      const int64_t bytes = std::accumulate(rows.back().begin(), rows.back().end(), int64_t{0});
      ins.back() = gathering_.narrow.encode(tensors_[i][b], parameters_[i].name);
      outs.back() = state.encoded.emplace_back(at::empty({bytes}, at::kByte));
    }
  }
  const Unit& of = units_.units[unit];
  state.work = group_of(of).all_gather(std::move(outs), std::move(ins), std::move(rows), of.name);
}

/// Decodes what every rank has sent, in the order in which `start_gather` made room for it.
void ShardedWeights::decode(std::size_t unit) {
  auto encoded = states_[unit].encoded.begin();
  const auto& members = units_.units[unit].parameters;
  for (std::size_t n = 0; n < members.size(); ++n) {
    if (!is_narrow(members[n])) continue;
    const at::Tensor all = packed(unit, n);
    for (const ShardedBox& box : shards_[members[n]].boxes) {
      int64_t from = 0, to = box.begin;
      for (const int64_t count : box.counts) {
        const int64_t bytes = gathering_.narrow.num_bytes(count, all.scalar_type());
        gathering_.narrow.decode(encoded->narrow(0, from, bytes), all.narrow(0, to, count));
        from += bytes;
        to += count;
      }
      ++encoded;
    }
  }
  states_[unit].encoded.clear();
}

void ShardedWeights::complete_gather(std::size_t unit) {
  UnitState& state = states_[unit];
  if (!state.work) return;
  state.work->wait();
  state.work.reset();
  decode(unit);
  const auto& members = units_.units[unit].parameters;
  for (std::size_t n = 0; n < members.size(); ++n) {
    const std::size_t i = members[n];
    const at::Tensor& parameter = parameters_[i].tensor;
    at::Tensor all = packed(unit, n);
    if (!shards_[i].plain) {
      if (!local_[i].defined())
        local_[i] = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
      for (const ShardedBox& box : shards_[i].boxes)
        nn::part_of(local_[i], box.local())
            .copy_(all.narrow(0, box.begin, box.numel()).view(box.local().box.shape));
      all = local_[i];
    }
    nn::bind(parameter, all);
  }
  state.bound = true;
}

void ShardedWeights::unbind(std::size_t unit,
                            const std::function<std::string(const std::string&)>& why) {
  for (std::size_t i : units_.units[unit].parameters)
    nn::unbind(parameters_[i].tensor, why(parameters_[i].name));
  states_[unit].bound = false;
}

void ShardedWeights::attach() {
  for (const auto& user : units_.users)
    core::check(!user.layer->has_hook(nn::Seam::Unshard),
                "layer '{}' is or was sharded already: shard a model once, and keep what shards it",
                user.layer->full_name());
  for (std::size_t user = 0; user < units_.users.size(); ++user) {
    units_.users[user].layer->around(
        nn::Seam::Unshard,
        [self = self_, user](nn::Flow in, const nn::LayerImpl::Call& inner) -> nn::Flow {
          if (*self == nullptr) return inner(std::move(in));
          return (*self)->around(user, std::move(in), inner);
        });
  }
}

void ShardedWeights::note_use(std::size_t user, const nn::Flow& in) {
  if (is_recomputing(in)) return;
  for (std::size_t unit : units_.users[user].units) ++states_[unit].uses;
  if (std::find(forward_order_.begin(), forward_order_.end(), user) == forward_order_.end())
    forward_order_.push_back(user);
}

void ShardedWeights::forget_uses() {
  for (UnitState& state : states_) state.uses = 0;
}

std::vector<std::size_t> ShardedWeights::backward_order() const {
  std::vector<std::size_t> units;  // by the first use of each
  for (std::size_t user : forward_order_)
    for (std::size_t unit : units_.users[user].units)
      if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  std::reverse(units.begin(), units.end());
  return units;
}

void ShardedWeights::start_check() {
  const auto count = static_cast<int64_t>(states_.size());
  at::Tensor mine = at::empty({1, count}, at::kLong);
  for (int64_t unit = 0; unit < count; ++unit)
    mine.data_ptr<int64_t>()[unit] = std::exchange(states_[static_cast<std::size_t>(unit)].uses, 0);
  for (const comm::Communicator& group : groups_) {
    UseCheck check{.all_uses = at::empty({group.size(), count}, at::kLong), .work = {}};
    check.work = group.all_gather({check.all_uses}, {mine}, {}, "the end of a step");
    checks_.push_back(std::move(check));
  }
}

void ShardedWeights::end_check() {
  // Gathers that are still in flight read the shards, which are updated next.
  for (std::size_t unit = 0; unit < states_.size(); ++unit) complete_gather(unit);
  std::vector<UseCheck> checks = std::exchange(checks_, {});
  for (UseCheck& check : checks) check.work.wait();
  for (std::size_t i = 0; i < checks.size(); ++i) compare_uses(checks[i], groups_[i]);
}

void ShardedWeights::compare_uses(const UseCheck& check, const comm::Communicator& group) const {
  const at::Tensor& all = check.all_uses;
  const int64_t count = all.size(1);
  for (int64_t unit = 0; unit < count; ++unit) {
    const int64_t* uses = all.data_ptr<int64_t>() + unit;
    std::vector<std::string> parts;
    bool same = true;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      same = same && uses[rank * count] == uses[0];
      parts.push_back(fmt::format("rank {} of the shard axis {} times", rank, uses[rank * count]));
    }
    if (same) continue;
    const std::string said = fmt::format(
        "the ranks went different ways through the model: in this step unit '{}' was used by {}; "
        "its weights are gathered from all of them, so every rank must run the same layers (with "
        "an empty batch, where it has nothing to do)",
        units_.units[static_cast<std::size_t>(unit)].name, fmt::join(parts, ", by "));
    group.abort(said);  // reaches also the ranks that share no shards with this one
    throw CommError(said);
  }
}

std::vector<at::Tensor> ShardedWeights::allocate(const std::vector<int64_t>& bytes) const {
  std::vector<at::Tensor> memory(bytes.size());
  if (parameters_.empty()) return memory;
  for (std::size_t i = 0; i < groups_.size(); ++i)
    memory[i] = groups_[i].allocate({bytes[i]}, byte_options());
  return memory;
}

at::Tensor ShardedWeights::assemble(std::size_t parameter,
                                    const std::vector<at::Tensor>& parts) const {
  const ShardedParameter& cut = shards_[parameter];
  const at::Tensor& own = parameters_[parameter].tensor;
  const at::ScalarType dtype = parts.empty() ? own.scalar_type() : parts.front().scalar_type();
  at::Tensor all = at::empty(own.sizes(), own.options().dtype(dtype).requires_grad(false));
  for (std::size_t b = 0; b < cut.boxes.size(); ++b) {
    const ShardedBox& box = cut.boxes[b];
    at::Tensor whole = at::empty({box.numel()}, parts[b].options());
    group_of(parameter)
        .all_gather({whole}, {parts[b].contiguous()}, {box.counts}, parameters_[parameter].name)
        .wait();
    nn::part_of(all, box.local()).copy_(whole.view(box.local().box.shape));
  }
  return all;
}

WholeWeights::WholeWeights(std::vector<nn::Parameter> parameters, Units units, const Mesh& mesh,
                           const Policy& policy, Narrow narrow)
    : ShardedWeights(std::move(parameters), std::move(units), mesh, policy,
                     {.narrow = std::move(narrow), .in_place = true}) {
  const at::NoGradGuard guard;
  std::vector<int64_t> bytes(groups_.size(), 0), begin(groups_.size(), 0);
  for (std::size_t u = 0; u < states_.size(); ++u)
    bytes[units_.units[u].experts] += states_[u].bytes;
  memory_ = allocate(bytes);
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const std::size_t group = units_.units[u].experts;
    states_[u].block = memory_[group].narrow(0, begin[group], states_[u].bytes);
    begin[group] += states_[u].bytes;
    for (std::size_t n = 0; n < units_.units[u].parameters.size(); ++n) {
      const std::size_t i = units_.units[u].parameters[n];
      for (const ShardedBox& box : shards_[i].boxes)
        tensors_[i].push_back(tensor_on(
            states_[u].block, states_[u].offsets[n] + (box.begin + box.piece.begin) * item_bytes(i),
            {box.piece.count}, dtype_of(i)));
    }
  }
  take_values();
  for (std::size_t u = 0; u < states_.size(); ++u) start_gather(u);
  for (std::size_t u = 0; u < states_.size(); ++u) complete_gather(u);
}

int64_t WholeWeights::gathered_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& one : memory_) bytes += one.defined() ? one.numel() : 0;
  return bytes;
}

nn::Flow WholeWeights::around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner) {
  note_use(user, in);
  start_gathers();
  for (std::size_t unit : units_.users[user].units) complete_gather(unit);
  return inner(std::move(in));
}

void WholeWeights::updated(Weights weights) {
  if (!out_of_date_)
    for (std::size_t unit = 0; unit < states_.size(); ++unit) complete_gather(unit);
  if (weights == Weights::Stale) round_masters();
  for (std::size_t unit = 0; unit < states_.size(); ++unit) {
    unbind(unit, [](const std::string& name) {
      return fmt::format(
          "parameter '{}' is being gathered after an update: it is there when its layer runs, or "
          "after FullySharded::complete_update()",
          name);
    });
  }
  out_of_date_ = true;
  if (!closed_steps_) start_gathers();
}

/// Gathers the updates of all ranks, in the order of use.
void WholeWeights::start_gathers() {
  if (!std::exchange(out_of_date_, false)) return;
  std::vector<std::size_t> order = backward_order();
  std::reverse(order.begin(), order.end());
  for (std::size_t unit = 0; unit < states_.size(); ++unit)
    if (std::find(order.begin(), order.end(), unit) == order.end()) order.push_back(unit);
  for (std::size_t unit : order) start_gather(unit);
}

void WholeWeights::complete_update() {
  start_gathers();
  for (std::size_t unit = 0; unit < states_.size(); ++unit) complete_gather(unit);
}

}  // namespace trireme::parallel
