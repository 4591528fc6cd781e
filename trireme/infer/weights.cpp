#include "trireme/infer/weights.h"

#include "trireme/checkpoint/resume.h"
#include "trireme/config/load.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
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

std::string find_checkpoint(const std::string& path) {
  if (format::is_file(path + "/index.json")) return path;
  for (const std::string& folder : {path, path + "/checkpoints"})
    if (const auto steps = format::list(folder); !steps.empty())
      return folder + "/" + format::step_name(steps.back());
  throw ConfigError(
      fmt::format("'{}' is no checkpoint, and there is none in it: name a step's folder, such as "
                  "runs/gpt-small/checkpoints/{}, or the folder of a run",
                  path, format::step_name(1200)));
}

config::Config config_of(const format::Checkpoint& checkpoint) {
  const core::Json& extra = checkpoint.index().extra;
  if (extra.contains("config") && extra["config"].is_string())
    return config::parse(extra["config"].get<std::string>(), checkpoint.folder());
  const std::string beside = checkpoint.folder() + "/../../config.toml";
  if (format::is_file(beside)) return config::load(beside);
  throw ConfigError(
      fmt::format("{} does not say of which model it is (it has no configuration, and there is no "
                  "{})",
                  checkpoint.folder(), beside));
}

checkpoint::State weights_of(const nn::ModelImpl& model) {
  checkpoint::State state;
  for (const nn::Parameter& one : nn::parameters_of(model)) add(state, one);
  for (const auto& buffer : model.named_buffers())
    state.items.push_back(checkpoint::whole("buffer/" + buffer.key(), buffer.value()));
  return state;
}

std::shared_ptr<nn::ModelImpl> load_model(
    format::Checkpoint& from, const Mesh& mesh, at::ScalarType dtype,
    const std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>& make) {
  std::shared_ptr<nn::ModelImpl> model;
  {
    const nn::Deferred deferred;  // they are overwritten: no initial values
    model = make(mesh);
  }
  nn::name_layers(*model);
  nn::move_to(*model, dtype, mesh.device());
  for (const nn::Parameter& one : nn::parameters_of(*model)) {
    nn::bind(one.tensor, at::empty({one.tensor.numel()}, one.tensor.options()));
    one.tensor.set_requires_grad(false);
  }
  checkpoint::load(from, weights_of(*model));
  model->eval();
  return model;
}

}  // namespace trireme::infer
