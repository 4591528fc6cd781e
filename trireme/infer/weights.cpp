#include "trireme/infer/weights.h"

#include "trireme/checkpoint/resume.h"
#include "trireme/config/validate.h"
#include "trireme/exchange/export_settings.h"
#include "trireme/exchange/hf_folder.h"
#include "trireme/exchange/start.h"
#include "trireme/format/find_step.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"

namespace trireme::infer {

namespace {

/// The parameter's values in the checkpoint, box by box.
void add(checkpoint::State& state, const nn::Parameter& one) {
  for (const LocalBox& held : one.layout.local_boxes(one.coord, one.degrees)) {
    const Box& box = held.box;
    state.items.push_back({.piece = {.name = one.name,
                                     .whole = one.layout.whole(),
                                     .offset = box.offset,
                                     .shape = box.shape,
                                     .begin = 0,
                                     .count = box.numel()},
                           .tensor = nn::part_of(one.tensor.detach(), held)});
  }
}

}  // namespace

StoredModel find_model(const std::string& path) {
  if (exchange::is_hf_folder(path) && !format::is_step(path)) {
    config::Config config;
    config.model.from = path;
    config.checkpoint.resume.from = config::Resume::From::Nothing;  // it is not a run
    exchange::complete_model(config, {});
    return {.folder = path, .config = config::resolved(config)};
  }
  const std::string step = format::find_step(path);
  return {.folder = step, .config = exchange::config_of(checkpoint::open(step))};
}

std::unique_ptr<format::TensorSource> open_weights(const StoredModel& stored,
                                                   const config::Config& config) {
  config::Config from = config;
  from.model.from = stored.folder;
  return exchange::open_weights(from).source;
}

checkpoint::State weights_of(const nn::ModelImpl& model) {
  checkpoint::State state;
  for (const nn::Parameter& one : nn::parameters_of(model)) add(state, one);
  for (const auto& buffer : model.named_buffers())
    state.items.push_back(checkpoint::whole("buffer/" + buffer.key(), buffer.value()));
  return state;
}

std::shared_ptr<nn::ModelImpl> load_model(
    format::TensorSource& weights, const Mesh& mesh, at::ScalarType dtype,
    const std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>& make) {
  std::shared_ptr<nn::ModelImpl> model;
  {
    const nn::Deferred deferred;  // they are overwritten: no initial values
    model = make(mesh);
  }
  nn::name_layers(*model);
  nn::move_to(*model, dtype, mesh.device());
  for (at::Tensor one : model->buffers())  // statistics stay wide, as in training
    if (one.is_floating_point())
      one.set_data(one.to(at::promote_types(one.scalar_type(), at::kFloat)));
  for (const nn::Parameter& one : nn::parameters_of(*model)) {
    nn::bind(one.tensor, at::empty({one.tensor.numel()}, one.tensor.options()));
    one.tensor.set_requires_grad(false);
  }
  checkpoint::load(weights, weights_of(*model));
  model->eval();
  return model;
}

}  // namespace trireme::infer
