#include "trireme/verify/recorder.h"

#include <fmt/format.h>

#include <torch/torch.h>

namespace trireme::verify {

namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

Note scalar(Stage stage, const std::string& name, double value) {
  return {stage, name, at::full({}, value, at::kDouble), {.held = {Held{}}}};
}

}  // namespace

Recorder::Recorder(train::Trainer& trainer, const Mesh& mesh) : trainer_(trainer), mesh_(mesh) {
  trainer.model().apply([this](torch::nn::Module& module) {
    auto* layer = dynamic_cast<nn::LayerImpl*>(&module);
    if (layer == nullptr) return;
    layer->around(nn::Seam::Profile, [this, layer](nn::Flow in, const nn::LayerImpl::Call& inner) {
      const bool again = in.where != nullptr && in.where->again;
      if (!recording_ || again) return inner(std::move(in));
      if (weights_.empty()) weights_ = weights();
      nn::Flow out = inner(std::move(in));
      if (out.tensors.size() == 1 && out.x().is_floating_point()) note_output(*layer, out.x());
      return out;
    });
  });
}

void Recorder::begin(const data::Batch& batch, int64_t first_row, int64_t micros) {
  recording_ = true;
  first_row_ = first_row;
  micros_ = micros;
  weights_.clear();
  gradients_.clear();
  calls_.clear();
  order_.clear();
  const Place rows{.first_row = first_row, .rows = true};
  inputs_ = {{Stage::Input, "inputs", copy_of(batch.inputs), rows},
             {Stage::Input, "targets", copy_of(batch.targets), rows}};
}

void Recorder::note_output(const nn::LayerImpl& layer, const at::Tensor& x) {
  const std::string& name = layer.full_name();
  auto [found, is_new] = calls_.try_emplace(name, Calls{&layer, {}});
  if (is_new) order_.push_back(name);
  if (layer.output()) found->second.outputs.push_back(copy_of(x));
}

std::vector<Note> Recorder::weights() const {
  std::vector<Note> notes;
  for (const nn::Parameter& one : trainer_.parameters())
    notes.push_back({Stage::Weight,
                     one.name,
                     copy_of(one.tensor),
                     {.held = one.layout.held(mesh_.coord(), mesh_.degrees())}});
  return notes;
}

void Recorder::note_gradients(double weight) {
  std::map<std::string, Note> by_name;
  for (const nn::Parameter& one : trainer_.parameters()) {
    const at::Tensor& gradient = one.tensor.grad();
    by_name[one.name] = {Stage::Gradient,
                         one.name,
                         gradient.defined() ? copy_of(gradient).div_(weight) : at::Tensor(),
                         {.held = one.layout.held(mesh_.coord(), mesh_.degrees())}};
  }
  for (const std::string& name : trainer_.gradient_order())
    gradients_.push_back(std::move(by_name.at(name)));
}

std::vector<Note> Recorder::end(const train::StepResult& result) {
  recording_ = false;
  std::vector<Note> notes = inputs_;
  if (weights_.empty()) weights_ = weights();
  notes.insert(notes.end(), weights_.begin(), weights_.end());
  for (const std::string& name : order_) {
    const auto& [layer, outputs] = calls_.at(name);
    const auto total = static_cast<int64_t>(outputs.size());
    const bool has_rows = total > 0 && outputs.front().dim() > 0;
    if (!has_rows || total % micros_ != 0) {
      skipped_.insert(name);
      continue;
    }
    const int64_t per_micro = total / micros_;
    for (int64_t call = 0; call < per_micro; ++call) {
      std::vector<at::Tensor> rows;
      for (int64_t micro = 0; micro < micros_; ++micro)
        rows.push_back(outputs[static_cast<std::size_t>(micro * per_micro + call)]);
      notes.push_back({Stage::Output,
                       call == 0 ? name : fmt::format("{} (call {})", name, call + 1),
                       at::cat(rows),
                       {.first_row = first_row_, .cuts = *layer->output(), .rows = true}});
    }
  }
  notes.push_back(scalar(Stage::Loss, "loss", result.loss));
  notes.insert(notes.end(), gradients_.begin(), gradients_.end());
  notes.push_back(scalar(Stage::Norm, "all gradients", result.grad_norm));
  return notes;
}

}  // namespace trireme::verify
