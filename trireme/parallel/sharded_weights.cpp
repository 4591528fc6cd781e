#include "trireme/parallel/sharded_weights.h"

#include <fmt/ranges.h>

#include <torch/autograd.h>

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/byte_block.h"

namespace trireme::parallel {

namespace {

namespace ag = torch::autograd;

int64_t item_bytes(const nn::Parameter& parameter) {
  return static_cast<int64_t>(parameter.tensor.element_size());
}

std::string why_not_there(const std::string& name) {
  return fmt::format(
      "parameter '{}' is sharded and has no memory now: it is gathered only while its layer runs; "
      "use it inside of that layer's compute",
      name);
}

}  // namespace

/// One call of a user that has a backward.
struct ShardedWeights::Call {
  std::shared_ptr<ShardedWeights*> owner;
  std::size_t user = 0;
  bool holds = false;             // are its units there for it?
  Phase phase = Phase::Backward;  // in which they were gathered
};

/// Passes tensors on; in backward it is reached when the user's own backward is over.
struct ShardedWeights::Guard : ag::Function<Guard> {
  struct Box : torch::CustomClassHolder {
    std::shared_ptr<Call> call;
  };
  static ag::variable_list forward(ag::AutogradContext* context, c10::intrusive_ptr<Box> box,
                                   at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(box);
    ag::variable_list out;
    for (const at::Tensor& one : inputs) out.push_back(one.defined() ? one.view_as(one) : one);
    return out;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto box =
        c10::static_intrusive_pointer_cast<Box>(context->saved_data["call"].toCapsule());
    if (*box->call->owner != nullptr) (*box->call->owner)->end_backward_of(box->call);
    ag::variable_list all(1);  // of the box
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
};

ShardedWeights::ShardedWeights(const std::vector<nn::Parameter>& parameters, Units units,
                               const Mesh& mesh, Options options)
    : parameters_(parameters),
      units_(std::move(units)),
      group_(mesh.group(Axis::Shard).split("gather", 0, mesh.coord(Axis::Shard))),
      keep_whole_(options.keep_whole),
      hold_all_(options.hold_all),
      ahead_(options.ahead),
      local_(parameters.size()),
      states_(units_.units.size()),
      self_(std::make_shared<ShardedWeights*>(this)) {
  const at::NoGradGuard guard;
  attach();
  lay_out(mesh);
  take_values();
}

ShardedWeights::~ShardedWeights() {
  *self_ = nullptr;
}

/// Places in blocks and among the shards, and the memory for what lasts.
void ShardedWeights::lay_out(const Mesh& mesh) {
  for (const nn::Parameter& one : parameters_)
    shards_.push_back(shard(one, mesh.coord(), mesh.degrees()));
  int64_t whole = 0, kept = 0;
  for (std::size_t u = 0; u < states_.size(); ++u) {
    for (std::size_t i : units_.units[u].parameters) {
      states_[u].offsets.push_back(states_[u].bytes);
      states_[u].bytes += padded(shards_[i].numel * item_bytes(parameters_[i]));
    }
    whole += states_[u].bytes;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (const ShardedBox& box : shards_[i].boxes)
      kept += padded(box.piece.count * item_bytes(parameters_[i]));
  if (parameters_.empty()) return;
  const auto bytes = parameters_.front().tensor.options().dtype(at::kByte).requires_grad(false);
  tensors_.resize(parameters_.size());
  if (keep_whole_) {
    whole_memory_ = group_.allocate({whole}, bytes);
    int64_t begin = 0;
    for (std::size_t u = 0; u < states_.size(); ++u) {
      states_[u].block = whole_memory_.narrow(0, begin, states_[u].bytes);
      begin += states_[u].bytes;
      for (std::size_t n = 0; n < units_.units[u].parameters.size(); ++n) {
        const std::size_t i = units_.units[u].parameters[n];
        for (const ShardedBox& box : shards_[i].boxes)
          tensors_[i].push_back(tensor_on(
              states_[u].block,
              states_[u].offsets[n] + (box.begin + box.piece.begin) * item_bytes(parameters_[i]),
              {box.piece.count}, parameters_[i].tensor.scalar_type()));
      }
    }
    return;
  }
  shard_memory_ = group_.allocate({kept}, bytes);
  pool_.emplace(hold_all_ ? static_cast<int>(states_.size()) : 1 + ahead_, bytes);
  int64_t begin = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const ShardedBox& box : shards_[i].boxes) {
      tensors_[i].push_back(
          tensor_on(shard_memory_, begin, {box.piece.count}, parameters_[i].tensor.scalar_type()));
      begin += padded(box.piece.count * item_bytes(parameters_[i]));
    }
  }
}

/// Moves the values that are there into the new memory, one parameter at a time.
void ShardedWeights::take_values() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& one = parameters_[i];
    const bool there = nn::is_bound(one.tensor);
    core::check(there || one.init.has_value(), "'{}' has neither values nor a rule to begin by",
                one.name);
    for (std::size_t b = 0; b < shards_[i].boxes.size(); ++b) {
      const ShardedBox& box = shards_[i].boxes[b];
      if (box.piece.count == 0) continue;
      if (there)
        tensors_[i][b].copy_(nn::part_of(one.tensor, box.held)
                                 .reshape({-1})
                                 .narrow(0, box.piece.begin, box.piece.count));
      else
        nn::fill_piece(one, box.piece, tensors_[i][b]);
    }
    nn::unbind(one.tensor, why_not_there(one.name));
  }
  if (!keep_whole_) return;
  for (std::size_t u = 0; u < states_.size(); ++u) gather(u);
  for (std::size_t u = 0; u < states_.size(); ++u) complete(u);
}

/// The boxes of a unit's n-th parameter, one by one.
at::Tensor ShardedWeights::packed(std::size_t unit, std::size_t nth) const {
  const std::size_t i = units_.units[unit].parameters[nth];
  return tensor_on(states_[unit].block, states_[unit].offsets[nth], {shards_[i].numel},
                   parameters_[i].tensor.scalar_type());
}

void ShardedWeights::gather(std::size_t unit) {
  State& state = states_[unit];
  if (state.bound || state.work) return;
  if (!keep_whole_) {
    state.block = pool_->take(state.bytes);
  }
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
    }
  }
  state.work =
      group_.all_gather(std::move(outs), std::move(ins), std::move(rows), units_.units[unit].name);
}

/// Waits until a unit is there, and gives its parameters that memory.
void ShardedWeights::complete(std::size_t unit) {
  State& state = states_[unit];
  if (state.bound) return;
  gather(unit);
  state.work->wait();
  state.work.reset();
  const auto& members = units_.units[unit].parameters;
  for (std::size_t n = 0; n < members.size(); ++n) {
    const std::size_t i = members[n];
    const at::Tensor& parameter = parameters_[i].tensor;
    at::Tensor all = packed(unit, n);
    if (!shards_[i].plain) {
      if (!local_[i].defined())
        local_[i] = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
      for (const ShardedBox& box : shards_[i].boxes)
        nn::part_of(local_[i], box.held)
            .copy_(all.narrow(0, box.begin, box.numel()).view(box.held.box.shape));
      all = local_[i];
    }
    nn::bind(parameter, all);
  }
  state.bound = true;
}

void ShardedWeights::let_go(std::size_t unit) {
  State& state = states_[unit];
  if (state.work) complete(unit);
  if (!state.bound) return;
  for (std::size_t i : units_.units[unit].parameters) {
    nn::unbind(parameters_[i].tensor, why_not_there(parameters_[i].name));
    local_[i] = at::Tensor();
  }
  pool_->give(std::exchange(state.block, at::Tensor()));
  state.bound = false;
}

void ShardedWeights::attach() {
  for (std::size_t user = 0; user < units_.users.size(); ++user) {
    core::check(!units_.users[user].layer->has_hook(nn::Seam::Unshard),
                "layer '{}' is or was sharded already: shard a model once, and keep what shards it",
                units_.users[user].layer->full_name());
    units_.users[user].layer->around(
        nn::Seam::Unshard,
        [self = self_, user](nn::Flow in, const nn::LayerImpl::Call& inner) -> nn::Flow {
          if (*self == nullptr) return inner(std::move(in));
          const bool there = (*self)->keep_whole_ || (*self)->held_;
          return there ? (*self)->around_kept(user, std::move(in), inner)
                       : (*self)->around(user, std::move(in), inner);
        });
  }
}

void ShardedWeights::note_order(std::size_t user) {
  if (std::find(forward_order_.begin(), forward_order_.end(), user) == forward_order_.end())
    forward_order_.push_back(user);
}

/// The user needs its units now; what came after this use the last time is gathered meanwhile.
void ShardedWeights::use(std::size_t user, Phase phase, bool trains) {
  Use ahead{user, phase};
  if (trains) {
    if (last_use_) next_[*last_use_] = ahead;
    last_use_ = ahead;
  } else {
    last_use_.reset();
  }
  for (std::size_t unit : units_.users[user].units) gather(unit);
  for (int i = 0; i < ahead_; ++i) {
    if (!trains) {  // forward only
      const auto here = std::find(forward_order_.begin(), forward_order_.end(), ahead.first);
      if (here == forward_order_.end() || here + 1 == forward_order_.end()) break;
      ahead = {*(here + 1), Phase::Forward};
    } else {
      const auto next = next_.find(ahead);
      if (next == next_.end()) break;
      ahead = next->second;
    }
    for (std::size_t unit : units_.users[ahead.first].units) gather(unit);
  }
  for (std::size_t unit : units_.users[user].units) complete(unit);
}

/// Lets the units of a user go, unless they are what is needed next.
void ShardedWeights::let_go_after(std::size_t user, Phase phase) {
  const auto next = next_.find({user, phase});
  for (std::size_t unit : units_.users[user].units) {
    const auto* soon = next == next_.end() ? nullptr : &units_.users[next->second.first].units;
    if (soon != nullptr && std::find(soon->begin(), soon->end(), unit) != soon->end()) continue;
    let_go(unit);
  }
}

nn::Flow ShardedWeights::around_kept(std::size_t user, nn::Flow in,
                                     const nn::LayerImpl::Call& inner) {
  const bool again = in.where != nullptr && in.where->again;
  if (!again) note_order(user);
  for (std::size_t unit : units_.users[user].units) {
    if (!again) ++states_[unit].uses;
    complete(unit);
  }
  return inner(std::move(in));
}

nn::Flow ShardedWeights::around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner) {
  const nn::LayerImpl& layer = *units_.users[user].layer;
  const bool again = in.where != nullptr && in.where->again;
  if (!again) {
    for (std::size_t unit : units_.users[user].units) ++states_[unit].uses;
    note_order(user);
  }
  const Phase phase = again ? Phase::Again : Phase::Forward;
  if (again) let_go_of_again(user);
  use(user, phase, layer.is_training());
  if (!at::GradMode::is_enabled() || !inner.backward_reads_weights) {
    nn::Flow out = inner(std::move(in));
    let_go_after(user, phase);
    return out;
  }
  auto call = std::make_shared<Call>();
  call->owner = self_;
  call->user = user;
  if (again) {  // its backward comes at once, unless others are computed again first
    call->holds = true;
    call->phase = Phase::Again;
    again_ = call;
  }
  if (std::any_of(in.tensors.begin(), in.tensors.end(),
                  [](const at::Tensor& one) { return one.defined() && one.requires_grad(); })) {
    auto box = c10::make_intrusive<Guard::Box>();
    box->call = call;
    in.tensors = Guard::apply(box, at::TensorList(in.tensors));
  }
  nn::Flow out = inner(std::move(in));
  for (const at::Tensor& one : out.tensors) {
    if (!one.defined() || !one.requires_grad()) continue;
    one.register_hook([call](const at::Tensor&) {
      if (*call->owner != nullptr) (*call->owner)->begin_backward(call);
    });
  }
  if (!again) let_go_after(user, phase);
  return out;
}

/// Several units are computed again one after the other: of those before the last the backward
/// comes later, and it gathers them once more.
void ShardedWeights::let_go_of_again(std::size_t next) {
  const auto call = std::exchange(again_, nullptr);
  if (call == nullptr || !call->holds || call->user == next) return;
  call->holds = false;
  let_go_after(call->user, Phase::Again);
}

void ShardedWeights::begin_backward(const std::shared_ptr<Call>& call) {
  core::check(!at::GradMode::is_enabled(),
              "layer '{}': a gradient of a gradient (create_graph) would need weights that are let "
              "go by then; use DataParallel, or keep them whole (Sharding::Gradients)",
              units_.users[call->user].layer->full_name());
  again_ = nullptr;
  if (call->holds) return;
  call->holds = true;
  call->phase = Phase::Backward;
  use(call->user, Phase::Backward, /*trains=*/true);
}

void ShardedWeights::end_backward_of(const std::shared_ptr<Call>& call) {
  if (!call->holds) return;
  call->holds = false;
  let_go_after(call->user, call->phase);
}

void ShardedWeights::end_pass() {
  last_use_.reset();  // what comes next is another micro-batch, or an update first
  if (keep_whole_ || held_) return;
  for (std::size_t unit = 0; unit < states_.size(); ++unit) let_go(unit);
}

void ShardedWeights::forget_uses() {
  for (State& state : states_) state.uses = 0;
  again_ = nullptr;
}

void ShardedWeights::hold() {
  if (keep_whole_) return;
  held_ = true;
  std::vector<std::size_t> order = backward_order();  // the first that is used is needed first
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit) gather(*unit);
  for (std::size_t unit = 0; unit < states_.size(); ++unit) gather(unit);
}

void ShardedWeights::complete_held() {
  for (std::size_t unit = 0; unit < states_.size() && held_; ++unit) complete(unit);
}

void ShardedWeights::let_go_of_all() {
  held_ = false;
  end_pass();
}

void ShardedWeights::updated() {
  last_use_.reset();
  if (!keep_whole_) {
    for (std::size_t unit = 0; unit < states_.size(); ++unit) let_go(unit);  // what was is no more
    if (!forward_order_.empty() && !hold_all_)
      for (std::size_t unit : units_.users[forward_order_.front()].units) gather(unit);
    return;
  }
  // In the order of their use: the first is needed first.
  std::vector<std::size_t> order = backward_order();
  std::reverse(order.begin(), order.end());
  for (std::size_t unit = 0; unit < states_.size(); ++unit)
    if (std::find(order.begin(), order.end(), unit) == order.end()) order.push_back(unit);
  for (std::size_t unit : order) {
    if (states_[unit].work) complete(unit);
    states_[unit].bound = false;
    for (std::size_t i : units_.units[unit].parameters)
      nn::unbind(
          parameters_[i].tensor,
          fmt::format("parameter '{}' is being gathered after an update: it is there when its "
                      "layer runs, or after FullySharded::settle()",
                      parameters_[i].name));
    gather(unit);
  }
}

void ShardedWeights::settle() {
  for (std::size_t unit = 0; unit < states_.size() && keep_whole_; ++unit) complete(unit);
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
  all_uses_ = at::empty({group_.size(), count}, at::kLong);
  checking_ = group_.all_gather({all_uses_}, {mine}, {}, "the end of a step");
}

void ShardedWeights::end_check() {
  // Nobody may read the shards any more when they are updated.
  for (std::size_t unit = 0; unit < states_.size(); ++unit)
    if (states_[unit].work) complete(unit);
  checking_.wait();
  const at::Tensor all = std::exchange(all_uses_, at::Tensor());
  const int64_t count = all.size(1);
  for (int64_t unit = 0; unit < count; ++unit) {
    const int64_t* uses = all.data_ptr<int64_t>() + unit;
    std::vector<std::string> parts;
    bool alike = true;
    for (int64_t rank = 0; rank < group_.size(); ++rank) {
      alike = alike && uses[rank * count] == uses[0];
      parts.push_back(fmt::format("rank {} of the shard axis {} times", rank, uses[rank * count]));
    }
    if (alike) continue;
    const std::string said = fmt::format(
        "the ranks went different ways through the model: in this step unit '{}' was used by {}; "
        "its weights are gathered from all of them, so every rank must run the same layers (with "
        "an empty batch, where it has nothing to do)",
        units_.units[static_cast<std::size_t>(unit)].name, fmt::join(parts, ", by "));
    group_.abort(said);  // also to those that share no shards with us
    throw CommError(said);
  }
}

at::Tensor ShardedWeights::assemble(std::size_t parameter,
                                    const std::vector<at::Tensor>& parts) const {
  const ShardedParameter& cut = shards_[parameter];
  const at::Tensor& own = parameters_[parameter].tensor;
  at::Tensor all = at::empty(own.sizes(), own.options().requires_grad(false));
  for (std::size_t b = 0; b < cut.boxes.size(); ++b) {
    const ShardedBox& box = cut.boxes[b];
    at::Tensor whole = at::empty({box.numel()}, parts[b].options());
    group_.all_gather({whole}, {parts[b].contiguous()}, {box.counts}, parameters_[parameter].name)
        .wait();
    nn::part_of(all, box.held).copy_(whole.view(box.held.box.shape));
  }
  return all;
}

int64_t ShardedWeights::gathered_bytes() const {
  return keep_whole_ ? whole_memory_.numel() : pool_ ? pool_->bytes() : 0;
}

}  // namespace trireme::parallel
