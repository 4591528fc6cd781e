#include "trireme/train/model_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/train/reducer_state.h"

namespace trireme::train {

namespace {

void add(checkpoint::State& state, const std::string& prefix, const parallel::ParameterShard& shard,
         const at::Tensor& tensor) {
  for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
    const Reduction& one = shard.reductions[i];
    Piece piece = shard.pieces[i];
    piece.name = prefix + piece.name;
    state.items.push_back({std::move(piece), shard.part(tensor, i), one.same});
  }
}

/// Adds parameters without elements. They have no pieces, but their names and shapes are saved.
void add_empty(checkpoint::State& state, const parallel::Attached& attached) {
  for (const torch::nn::Module* module : attached.modules())
    for (const nn::Parameter& one : nn::parameters_of(*module))
      if (Box{{}, one.layout.whole()}.numel() == 0)
        state.items.push_back(checkpoint::whole(
            one.name, at::empty(one.layout.whole(), one.tensor.options().requires_grad(false))));
}

/// Adds the past weights that the next steps of an asynchronous pipeline use. A run with other
/// stages or delays starts without them.
void add_past_weights(checkpoint::State& state, const parallel::Attached& attached) {
  for (const auto& [shard, age, tensor] : attached.past_weights()) {
    const std::size_t first = state.items.size();
    add(state, fmt::format("{}{}/", kPastWeights, age), attached.shards()[shard], tensor);
    for (std::size_t i = first; i < state.items.size(); ++i) state.items[i].optional = true;
  }
}

/// How many gradients each rank waits for in a step, which decides the order of its sums. Empty if
/// no rank waits for more than one gradient of a parameter.
core::Json gather_fires(const parallel::Attached& attached) {
  const Mesh& mesh = attached.mesh();
  core::Json ranks = core::Json::array();
  bool several = false;
  for (const std::string& text :
       comm::all_gather_texts(mesh.world(), core::Json(attached.fires()).dump())) {
    ranks.push_back(core::parse_json(text, "what a rank waits for"));
    several = several || !ranks.back().empty();
  }
  return several ? ranks : core::Json::array();
}

/// Restores the order of gradients, for the same bits. Another mesh observes its own order, because
/// gradients arrive in another order there.
void restore_order(parallel::Attached& attached, const core::Json& extra) {
  const Mesh& mesh = attached.mesh();
  if (extra.value("bucket_mesh", "") != to_string(mesh.degrees())) return;
  const auto order = extra.at("bucket_order").get<std::vector<std::string>>();
  if (order.empty()) return;
  const core::Json& ranks = extra.at("bucket_fires");
  attached.set_order(
      order, ranks.empty()
                 ? parallel::Fires{}
                 : ranks.at(static_cast<std::size_t>(mesh.world().rank())).get<parallel::Fires>());
}

/// The shard that an optimizer's slot updates.
const parallel::ParameterShard& shard_of(const parallel::Attached& attached,
                                         const optim::Slot& slot) {
  const auto& all = attached.shards();
  const auto found = std::ranges::find_if(
      all, [&](const parallel::ParameterShard& one) { return one.master.is_same(slot.parameter); });
  core::check(found != all.end(),
              "the optimizer updates a tensor '{}' that the model does not keep; give it the "
              "masters of shards()",
              slot.name);
  return *found;
}

}  // namespace

checkpoint::State weights_of(const parallel::Attached& attached, WeightsOf of) {
  checkpoint::State state;
  if (of != WeightsOf::Base)
    for (const parallel::ParameterShard& one : attached.shards()) add(state, "", one, one.master);
  if (of != WeightsOf::Adapters)
    for (const parallel::ParameterShard& one : attached.frozen()) add(state, "", one, one.master);
  add_empty(state, attached);
  for (const auto& [name, tensor] : attached.buffers())
    state.items.push_back(checkpoint::whole("buffer/" + name, tensor));
  return state;
}

checkpoint::State state_of(parallel::Attached& attached, optim::Resumable& optimizer,
                           WeightsOf of) {
  const Mesh& mesh = attached.mesh();
  checkpoint::State state;
  state.extra = attached.state();
  state.items = weights_of(attached, of).items;
  add_past_weights(state, attached);
  add_reducer(state, attached);
  const auto& slots = optimizer.slots();
  for (const optim::OptimizerState& one : optimizer.states())
    add(state, fmt::format("optim/{}/", one.kind), shard_of(attached, slots[one.slot]), one.tensor);
  core::Json steps = core::Json::object();
  const auto counts = optimizer.steps();
  for (std::size_t i = 0; i < counts.size(); ++i) steps[slots[i].name] = counts[i];
  core::Json order = attached.order();
  if (mesh.degrees().pipe > 1) {  // each stage knows only its own part
    const core::Json mine = {{"steps", steps}, {"order", order}};
    order = core::Json::array();
    for (const std::string& text : comm::all_gather_texts(mesh.group(Axis::Pipe), mine.dump())) {
      const core::Json theirs = core::parse_json(text, "the state of a stage");
      steps.update(theirs.at("steps"));
      for (const core::Json& name : theirs.at("order"))
        if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    }
  }
  state.extra["optimizer"] = {{"kind", optimizer.kind()}, {"steps", steps}};
  state.extra["bucket_mesh"] = to_string(mesh.degrees());
  state.extra["bucket_order"] = order;
  state.extra["bucket_fires"] = gather_fires(attached);
  return state;
}

void check_same_optimizer(const optim::Resumable& optimizer, const core::Json& extra) {
  const auto saved = extra.at("optimizer").at("kind").get<std::string>();
  if (saved != optimizer.kind())
    throw ConfigError(fmt::format("the checkpoint was made with the optimizer {}, this is {}",
                                  saved, optimizer.kind()));
}

void restore(parallel::Attached& attached, optim::Resumable& optimizer, const core::Json& extra) {
  check_same_optimizer(optimizer, extra);
  const core::Json& saved = extra.at("optimizer");
  std::vector<int64_t> counts;
  for (const optim::Slot& slot : optimizer.slots()) {
    if (slot.parameter.numel() == 0) {  // a mesh that shards it saves no state for it
      counts.push_back(0);
      continue;
    }
    if (!saved.at("steps").contains(slot.name))
      throw CheckpointError(
          fmt::format("the checkpoint has no optimizer state for '{}'", slot.name));
    counts.push_back(saved.at("steps").at(slot.name));
  }
  optimizer.set_steps(counts);
  restore_order(attached, extra);
  attached.restore(extra);
  attached.updated();
}

}  // namespace trireme::train
