#include "trireme/verify/planted_mistake.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"

namespace trireme::verify {

namespace {

constexpr int64_t kOtherSamples = 1 << 20;

}  // namespace

Mistake mistake_of(const std::string& word) {
  static const std::map<std::string, Mistake> words = {
      {"average", Mistake::Average}, {"reduce", Mistake::Reduce}, {"order", Mistake::Order},
      {"stale", Mistake::Stale},     {"data", Mistake::Data},     {"dropout", Mistake::Dropout}};
  const auto found = words.find(word);
  if (found == words.end())
    throw ConfigError(
        fmt::format("--plant {}: there are average, reduce, order, stale, data and dropout", word));
  return found->second;
}

PlantedMistake::PlantedMistake(Mistake mistake, train::Trainer& trainer, const Mesh& mesh)
    : mistake_(mistake),
      trainer_(trainer),
      mesh_(mesh),
      last_(mesh.samples().rank() == mesh.samples().size() - 1) {
  require(mistake == Mistake::None || mesh.world().size() > 1, "a mesh of more than one rank");
  if (mistake == Mistake::Order && mesh.size(Axis::Tensor) > 1) swap_shards();
  averaged_ = mesh.samples().size() > 1 ? mesh.samples().size() : mesh.world().size();
  if (mistake == Mistake::Stale)
    for (const parallel::ParameterShard& one : trainer.shards())
      before_.push_back(one.master.detach().clone());
  if (mistake == Mistake::Dropout) {
    bool drops = false;
    trainer.model().apply([&](torch::nn::Module& module) {
      const auto* dropout = dynamic_cast<nn::DropoutImpl*>(&module);
      drops = drops || (dropout != nullptr && dropout->probability() > 0);
    });
    require(drops, "a Dropout whose probability is not 0");
  }
  if (mistake != Mistake::Reduce) return;
  const auto& all = trainer.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (mesh.samples().size() == 1 && all[i].layout.partial().empty()) continue;
    parameter_ = i;
    victim_ = all[i].tensor;
    own_ = at::zeros(victim_.sizes(), victim_.options().requires_grad(false));
    hook_ = victim_.register_hook([this](const at::Tensor& gradient) {
      own_ += gradient;
      return gradient;
    });
    return;
  }
  require(false, "a gradient that is reduced: replicas, or sequence parallelism");
}

PlantedMistake::~PlantedMistake() {
  if (victim_.defined()) victim_.remove_hook(hook_);
}

void PlantedMistake::require(bool possible, const char* why) const {
  if (!possible) throw ConfigError(fmt::format("--plant needs {}", why));
}

/// Reverses the order of the shards along the tensor axis.
void PlantedMistake::swap_shards() {
  const comm::Communicator& tensor = mesh_.group(Axis::Tensor);
  const int size = tensor.size();
  for (const parallel::ParameterShard& shard : trainer_.shards()) {
    const nn::Parameter& one = trainer_.parameters()[shard.parameter];
    if (!one.layout.is_cut(Axis::Tensor)) continue;
    const auto first = one.layout.local_shape({.tensor = 0}, mesh_.degrees());
    if (first != one.layout.local_shape({.tensor = size - 1}, mesh_.degrees())) continue;
    const at::NoGradGuard guard;
    const at::Tensor mine = shard.master.detach().contiguous();
    std::vector<int64_t> shape = mine.sizes().vec();
    shape.insert(shape.begin(), size);
    at::Tensor all = at::empty(shape, mine.options());
    tensor.all_gather(all, mine.unsqueeze(0)).wait();
    shard.master.detach().copy_(all[size - 1 - tensor.rank()]);
    trainer_.attached().updated();
    return;
  }
  require(false, "a weight that is cut evenly over the tensor axis");
}

int PlantedMistake::block(int rank, int size) const {
  const bool swaps = mistake_ == Mistake::Order && mesh_.size(Axis::Tensor) == 1;
  return swaps ? size - 1 - rank : rank;
}

int64_t PlantedMistake::batch_number(int64_t number, const data::Order& order) const {
  const bool other = mistake_ == Mistake::Data && last_ &&
                     mesh_.coord(Axis::Tensor) == mesh_.size(Axis::Tensor) - 1;
  return other ? number + order.batches_per_epoch()
               : number;  // of the same size, with other samples
}

void PlantedMistake::touch(data::Batch& batch) const {
  // On a mesh with only a pipe axis: the inputs come in another order than the targets.
  if (mistake_ == Mistake::Order && mesh_.size(Axis::Pipe) == mesh_.world().size() &&
      mesh_.coord(Axis::Pipe) == 0) {
    batch.inputs = batch.inputs.flip(0);
    std::reverse(batch.sample_ids.begin(), batch.sample_ids.end());
  }
  if (mistake_ != Mistake::Dropout || !last_) return;
  for (int64_t& id : batch.sample_ids) id += kOtherSamples;
}

void PlantedMistake::touch_gradients() {
  const at::NoGradGuard guard;
  if (mistake_ == Mistake::Average)
    for (const parallel::ParameterShard& one : trainer_.shards())
      if (one.gradient().defined()) one.gradient().mul_(averaged_);
  if (mistake_ == Mistake::Reduce) {
    for (const parallel::ParameterShard& one : trainer_.shards()) {
      if (one.parameter != parameter_) continue;
      for (std::size_t i = 0; i < one.pieces.size(); ++i) {
        const at::Tensor box = nn::part_of(own_, one.reductions[i].box).reshape({-1});
        at::Tensor to = one.part(one.gradient(), i);
        to.copy_(box.narrow(0, one.pieces[i].begin, one.pieces[i].count).view(to.sizes()));
      }
    }
    own_.zero_();
  }
}

void PlantedMistake::touch_weights(int64_t step) {
  if (mistake_ != Mistake::Stale || step != 1) return;
  if (mesh_.world().rank() == mesh_.world().size() - 1) {
    const at::NoGradGuard guard;
    for (std::size_t i = 0; i < before_.size(); ++i)
      trainer_.shards()[i].master.detach().copy_(before_[i]);
  }
  trainer_.attached().updated();
}

}  // namespace trireme::verify
