#include "trireme/parallel/gathered_weights.h"

#include <torch/autograd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/parallel/byte_block.h"

namespace trireme::parallel {

namespace {

namespace ag = torch::autograd;

}  // namespace

/// One call of a user, until its backward is over.
struct GatheredWeights::PendingCall {
  std::shared_ptr<GatheredWeights*> owner;
  std::size_t user = 0;
  bool holds = false;             // its units are gathered for it
  Phase phase = Phase::Backward;  // in which they were gathered
};

/// An identity in forward. Autograd reaches its backward when the backward of the user's call is
/// over.
struct GatheredWeights::BackwardEnd : ag::Function<BackwardEnd> {
  struct CallBox : torch::CustomClassHolder {
    std::shared_ptr<PendingCall> call;
  };
  static ag::variable_list forward(ag::AutogradContext* context, c10::intrusive_ptr<CallBox> box,
                                   at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(box);
    ag::variable_list out;
    for (const at::Tensor& one : inputs) out.push_back(one.defined() ? one.view_as(one) : one);
    return out;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto box =
        c10::static_intrusive_pointer_cast<CallBox>(context->saved_data["call"].toCapsule());
    if (*box->call->owner != nullptr) (*box->call->owner)->end_backward(box->call);
    ag::variable_list all(1);  // of the box
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
};

GatheredWeights::GatheredWeights(std::vector<nn::Parameter> parameters, Units units,
                                 const Mesh& mesh, const Policy& policy, Options options)
    : ShardedWeights(std::move(parameters), std::move(units), mesh, policy,
                     {.narrow = options.narrow}),
      options_(std::move(options)),
      guarded_(std::make_shared<GatheredWeights*>(this)) {
  const at::NoGradGuard guard;
  std::vector<int64_t> bytes(groups_.size(), 0), begin(groups_.size(), 0);
  const auto index_of = [&](std::size_t i) -> std::size_t {
    return units_.units[units_.unit_of[i]].experts;
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (const ShardedBox& box : shards_[i].boxes) bytes[index_of(i)] += shard_bytes(i, box);
  memory_ = allocate(bytes);
  const auto at_a_time = static_cast<int>(groups_.size());  // units of a layer
  pool_.emplace(
      options_.hold_all ? static_cast<int>(states_.size()) : at_a_time * (1 + options_.ahead),
      byte_options());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::size_t group = index_of(i);
    for (const ShardedBox& box : shards_[i].boxes) {
      tensors_[i].push_back(
          tensor_on(memory_[group], begin[group], {box.piece.count}, dtype_of(i)));
      begin[group] += shard_bytes(i, box);
    }
  }
  take_values();
}

GatheredWeights::~GatheredWeights() {
  *guarded_ = nullptr;
}

void GatheredWeights::gather(std::size_t unit) {
  UnitState& state = states_[unit];
  if (state.bound || state.work) return;
  state.block = pool_->take(state.bytes);
  start_gather(unit);
}

void GatheredWeights::release(std::size_t unit) {
  UnitState& state = states_[unit];
  complete_gather(unit);
  if (!state.bound) return;
  unbind(unit, not_gathered);
  for (std::size_t i : units_.units[unit].parameters) local_[i] = at::Tensor();
  pool_->give(std::exchange(state.block, at::Tensor()));
}

std::optional<GatheredWeights::UnitUse> GatheredWeights::next_use(const UnitUse& now,
                                                                  bool trains) const {
  if (trains) {
    const auto next = next_.find(now);
    return next == next_.end() ? std::nullopt : std::optional(next->second);
  }
  const auto here = std::find(forward_order_.begin(), forward_order_.end(), now.first);
  if (here == forward_order_.end() || here + 1 == forward_order_.end()) return std::nullopt;
  return UnitUse{*(here + 1), Phase::Forward};
}

/// Gathers the units that the user needs now. Before it waits for them, it also starts to gather
/// the units of the next uses, in the order of the last pass.
void GatheredWeights::use(std::size_t user, Phase phase, bool trains) {
  const UnitUse now{user, phase};
  if (trains && last_use_) next_[*last_use_] = now;
  last_use_ = trains ? std::optional(now) : std::nullopt;
  for (std::size_t unit : units_.users[user].units) gather(unit);
  std::optional<UnitUse> ahead = now;
  for (int i = 0; i < options_.ahead; ++i) {
    ahead = next_use(*ahead, trains);
    if (!ahead) break;
    for (std::size_t unit : units_.users[ahead->first].units) gather(unit);
  }
  for (std::size_t unit : units_.users[user].units) complete_gather(unit);
}

/// Releases the units of a user, except those that the next use needs.
void GatheredWeights::release_after(std::size_t user, Phase phase) {
  const auto next = next_.find({user, phase});
  for (std::size_t unit : units_.users[user].units) {
    const auto* soon = next == next_.end() ? nullptr : &units_.users[next->second.first].units;
    if (soon != nullptr && std::find(soon->begin(), soon->end(), unit) != soon->end()) continue;
    release(unit);
  }
}

nn::Flow GatheredWeights::around_held(std::size_t user, nn::Flow in,
                                      const nn::LayerImpl::Call& inner) {
  note_use(user, in);
  for (std::size_t unit : units_.users[user].units) {
    gather(unit);
    complete_gather(unit);
  }
  return inner(std::move(in));
}

nn::Flow GatheredWeights::around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner) {
  if (held_) return around_held(user, std::move(in), inner);
  const nn::LayerImpl& layer = *units_.users[user].layer;
  const bool recomputes = in.where != nullptr && in.where->recomputing;
  note_use(user, in);
  const Phase phase = recomputes ? Phase::Recompute : Phase::Forward;
  if (recomputes) release_recomputed(user);
  use(user, phase, layer.is_training());
  if (!at::GradMode::is_enabled() || !inner.backward_reads_weights) {
    nn::Flow out = inner(std::move(in));
    release_after(user, phase);
    return out;
  }
  auto call = std::make_shared<PendingCall>();
  call->owner = guarded_;
  call->user = user;
  if (recomputes) {  // its backward follows at once, unless other units are recomputed first
    call->holds = true;
    call->phase = Phase::Recompute;
    recomputed_ = call;
  }
  watch_backward(call, in);
  nn::Flow out = inner(std::move(in));
  for (const at::Tensor& one : out.tensors) {
    if (!one.defined() || !one.requires_grad()) continue;
    one.register_hook([call](const at::Tensor&) {
      if (*call->owner != nullptr) (*call->owner)->begin_backward(call);
    });
  }
  if (!recomputes) release_after(user, phase);
  return out;
}

/// Marks the end of the call's backward: the gradients of its inputs are complete there.
void GatheredWeights::watch_backward(const std::shared_ptr<PendingCall>& call, nn::Flow& in) const {
  if (std::none_of(in.tensors.begin(), in.tensors.end(),
                   [](const at::Tensor& one) { return one.defined() && one.requires_grad(); }))
    return;
  auto box = c10::make_intrusive<BackwardEnd::CallBox>();
  box->call = call;
  in.tensors = BackwardEnd::apply(box, at::TensorList(in.tensors));
}

/// When several units are recomputed one after the other, releases all but the last: their backward
/// comes later and gathers them once more.
void GatheredWeights::release_recomputed(std::size_t next) {
  const auto call = std::exchange(recomputed_, nullptr);
  if (call == nullptr || !call->holds || call->user == next) return;
  call->holds = false;
  release_after(call->user, Phase::Recompute);
}

void GatheredWeights::begin_backward(const std::shared_ptr<PendingCall>& call) {
  core::check(!at::GradMode::is_enabled(),
              "layer '{}': a gradient of a gradient (create_graph) would need weights that are "
              "released by then; use DataParallel, or keep them whole (Sharding::Gradients)",
              units_.users[call->user].layer->full_name());
  recomputed_ = nullptr;
  if (call->holds) return;
  call->holds = true;
  call->phase = Phase::Backward;
  use(call->user, Phase::Backward, /*trains=*/true);
}

void GatheredWeights::end_backward(const std::shared_ptr<PendingCall>& call) {
  if (!call->holds) return;
  call->holds = false;
  release_after(call->user, call->phase);
}

void GatheredWeights::end_pass() {
  last_use_.reset();  // the next use belongs to another micro-batch
  if (held_) return;
  for (std::size_t unit = 0; unit < states_.size(); ++unit) release(unit);
}

void GatheredWeights::forget_uses() {
  ShardedWeights::forget_uses();
  recomputed_ = nullptr;
}

void GatheredWeights::hold() {
  held_ = true;
  std::vector<std::size_t> order = backward_order();  // gather in the order of use
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit) gather(*unit);
  for (std::size_t unit = 0; unit < states_.size(); ++unit) gather(unit);
}

void GatheredWeights::complete_held() {
  for (std::size_t unit = 0; unit < states_.size() && held_; ++unit) {
    gather(unit);
    complete_gather(unit);
  }
}

void GatheredWeights::release_all() {
  held_ = false;
  end_pass();
}

void GatheredWeights::close_steps() {
  ShardedWeights::close_steps();
  pool_->keep(std::numeric_limits<int>::max());
}

/// Units that were gathered before the update are out of date.
void GatheredWeights::updated(Weights weights) {
  last_use_.reset();
  for (std::size_t unit = 0; unit < states_.size(); ++unit) release(unit);
  if (weights == Weights::Stale) round_masters();
  if (forward_order_.empty() || options_.hold_all || closed_steps_) return;
  for (std::size_t unit : units_.users[forward_order_.front()].units) gather(unit);
}

}  // namespace trireme::parallel
