#include "trireme/verify/step_recorder.h"

#include <fmt/format.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace trireme::verify {

namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

StepRecorder::StepRecorder(train::Trainer& trainer, const Mesh& mesh)
    : trainer_(trainer), mesh_(mesh) {
  trainer.model().apply([this](torch::nn::Module& module) {
    auto* layer = dynamic_cast<nn::LayerImpl*>(&module);
    if (layer == nullptr) return;
    layer->around(nn::Seam::Profile, [self = self_, layer](nn::Flow in,
                                                           const nn::LayerImpl::Call& inner) {
      return *self != nullptr ? (*self)->look(*layer, std::move(in), inner) : inner(std::move(in));
    });
  });
}

nn::Flow StepRecorder::look(const nn::LayerImpl& layer, nn::Flow in,
                            const nn::LayerImpl::Call& inner) {
  const bool recomputing = in.where != nullptr && in.where->recomputing;
  if (!recording_ || recomputing) return inner(std::move(in));
  // Record the weights when they are first used, because a mistake may change them after `begin`.
  if (!std::exchange(looked_, true)) weights_ = weights();
  nn::Flow out = inner(std::move(in));
  record_output(layer, out);
  return out;
}

void StepRecorder::begin(const data::Batch& batch, int64_t first_row, const Positions& positions,
                         int64_t micros) {
  recording_ = true;
  first_row_ = first_row;
  rows_ = batch.inputs.size(0);
  micros_ = micros;
  weights_ = weights();  // for a stage that has only a loss and calls no layer
  buffers_ = buffers();
  looked_ = false;
  gradients_.clear();
  calls_.clear();
  order_.clear();
  const Coverage rows{.first_row = first_row, .rows = true, .positions = positions.ranges()};
  inputs_ = {{TensorRole::Input, "inputs", copy_of(batch.inputs), rows},
             {TensorRole::Input, "targets", copy_of(batch.targets), rows}};
}

void StepRecorder::record_output(const nn::LayerImpl& layer, const nn::Flow& out) {
  const std::string& name = layer.full_name();
  auto cuts = layer.output();
  const auto comparable = [](const at::Tensor& one) {
    return one.defined() && one.is_floating_point() && one.dim() > 0;
  };
  if (!cuts || out.tensors.empty() || !comparable(out.x())) {
    skipped_.insert(name);
    return;
  }
  const bool positions_known =
      std::any_of(cuts->begin(), cuts->end(), [](const Cut& cut) { return cut.dim == 1; });
  if (out.where != nullptr && out.where->cut_from && !positions_known &&
      mesh_.size(Axis::Context) == 1)
    cuts->push_back({.axis = Axis::Tensor, .dim = 1});
  record_tensor(name, *cuts, out, out.x());
  for (std::size_t i = 1; i < out.tensors.size(); ++i) {
    const at::Tensor& one = out.tensors[i];
    if (comparable(one) && (cuts->empty() || one.sizes() == out.x().sizes()))
      record_tensor(fmt::format("{} (tensor {})", name, i + 1), *cuts, out, one);
  }
}

void StepRecorder::record_tensor(const std::string& name, std::vector<Cut> cuts,
                                 const nn::Flow& out, const at::Tensor& tensor) {
  std::vector<Range> positions;
  if (mesh_.size(Axis::Context) > 1 && out.where != nullptr && tensor.dim() > 1 &&
      !out.where->positions.is_open() && tensor.size(1) == out.where->positions.count())
    positions = out.where->positions.ranges();
  auto [found, is_new] = calls_.try_emplace(name, Calls{std::move(cuts), std::move(positions), {}});
  if (is_new) order_.push_back(name);
  found->second.outputs.emplace_back(out.where != nullptr ? out.where->micro : 0, copy_of(tensor));
}

std::vector<TensorRecord> StepRecorder::weights() const {
  std::vector<TensorRecord> records;
  const auto& all = trainer_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i)
    records.push_back({TensorRole::Weight,
                       all[i].name,
                       copy_of(trainer_.attached().value(i)),
                       {.boxes = all[i].layout.local_boxes(mesh_.coord(), mesh_.degrees())}});
  for (const auto& [parameter, value] : trainer_.attached().frozen_values())
    records.push_back({TensorRole::Weight,
                       parameter.name,
                       copy_of(value),
                       {.boxes = parameter.layout.local_boxes(mesh_.coord(), mesh_.degrees())}});
  return records;
}

std::vector<TensorRecord> StepRecorder::buffers() const {
  std::vector<TensorRecord> records;
  for (const auto& [name, tensor] : trainer_.attached().buffers())
    records.push_back(
        {TensorRole::Buffer,
         name,
         copy_of(tensor),
         {.boxes = Layout(tensor.sizes().vec()).local_boxes(mesh_.coord(), mesh_.degrees())}});
  return records;
}

std::vector<TensorRecord> StepRecorder::state() const {
  std::vector<TensorRecord> records = weights();
  for (TensorRecord& one : buffers()) records.push_back(std::move(one));
  return records;
}

void StepRecorder::record_gradients(double weight) {
  std::map<std::string, TensorRecord> by_name;
  const auto& all = trainer_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const nn::Parameter& one = all[i];
    const at::Tensor gradient = trainer_.attached().gradient(i);
    by_name[one.name] = {TensorRole::Gradient,
                         one.name,
                         gradient.defined() ? copy_of(gradient).div_(weight) : at::Tensor(),
                         {.boxes = one.layout.local_boxes(mesh_.coord(), mesh_.degrees())}};
  }
  for (const std::string& name : trainer_.gradient_order())
    gradients_.push_back(std::move(by_name.at(name)));
}

std::vector<TensorRecord> StepRecorder::end(const train::StepResult& result) {
  recording_ = false;
  std::vector<TensorRecord> records = inputs_;
  records.insert(records.end(), weights_.begin(), weights_.end());
  records.insert(records.end(), buffers_.begin(), buffers_.end());
  for (const std::string& name : order_) {
    auto& [cuts, positions, outputs] = calls_.at(name);
    // A pipeline may run micro-batches in another order.
    std::stable_sort(outputs.begin(), outputs.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto total = static_cast<int64_t>(outputs.size());
    const int64_t per_micro = total / micros_;
    for (int64_t call = 0; call < per_micro; ++call) {
      std::vector<at::Tensor> parts;
      for (int64_t micro = 0; micro < micros_; ++micro)
        parts.push_back(outputs[static_cast<std::size_t>(micro * per_micro + call)].second);
      at::Tensor whole = at::cat(parts);
      if (total % micros_ != 0 || whole.size(0) != rows_) {  // not by samples
        skipped_.insert(name);
        break;
      }
      records.push_back(
          {TensorRole::Output,
           call == 0 ? name : fmt::format("{} (call {})", name, call + 1),
           std::move(whole),
           {.first_row = first_row_, .cuts = cuts, .rows = true, .positions = positions}});
    }
  }
  records.push_back(scalar(TensorRole::Loss, "loss", result.loss));
  records.insert(records.end(), gradients_.begin(), gradients_.end());
  records.push_back(scalar(TensorRole::Norm, "all gradients", result.grad_norm));
  return records;
}

}  // namespace trireme::verify
