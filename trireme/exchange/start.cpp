#include "trireme/exchange/start.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "trireme/config/keys.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/exchange/export_settings.h"
#include "trireme/exchange/hf_weights.h"
#include "trireme/format/dtype.h"
#include "trireme/format/find_step.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"

namespace trireme::exchange {

namespace {

/// Keys of a run that weights do not depend on.
constexpr std::string_view kOfTheRun[] = {
    "model.dropout",    "model.attention_dropout", "model.from",   "model.pixels",
    "model.batch_norm", "model.capacity",          "model.balance"};

bool is_of_weights(const config::Key& key) {
  return key.section() == "model" && std::ranges::find(kOfTheRun, key.name) == std::end(kOfTheRun);
}

/// A checkpoint whose table of positions may be longer than the model's.
class CheckpointWeights : public format::TensorSource {
 public:
  CheckpointWeights(const std::string& step, const config::Model& ours)
      : saved_(step), positions_(ours.seq) {}

  const format::Checkpoint& saved() const { return saved_; }

  std::optional<Tensor> tensor(const std::string& name) const override {
    auto found = saved_.tensor(name);
    if (found && crops(name)) found->shape[0] = std::min(found->shape[0], positions_);
    return found;
  }

  void read(const Piece& wanted, std::string_view dtype, void* to) override {
    Piece piece = wanted;
    if (const auto found = saved_.tensor(wanted.name); found && crops(wanted.name))
      piece.whole = found->shape;  // rows before the others: the same box
    saved_.read(piece, dtype, to);
  }

 private:
  static bool crops(const std::string& name) { return name == "wpe.weight"; }

  format::Checkpoint saved_;
  int64_t positions_;
};

/// The model of the checkpoint that a run continues from; nothing if it is new. What is wrong with
/// that checkpoint, resuming will say.
std::optional<config::Model> resumed_model(const config::Config& config) {
  using From = config::Resume::From;
  const auto& [from, folder] = config.checkpoint.resume;
  if (from == From::Nothing) return std::nullopt;
  const std::string steps = config.run.dir + "/checkpoints";
  std::vector<std::string> places;
  if (from == From::Folder)
    places.push_back(folder);
  else
    for (const int64_t step : format::list(steps))
      places.insert(places.begin(), steps + "/" + format::step_name(step));
  for (const std::string& place : places) {
    try {
      return config_of(format::Checkpoint(place)).model;
    } catch (const std::exception&) {
    }
  }
  return std::nullopt;
}

/// The model whose weights `from` holds.
config::Model model_at(const std::string& from) {
  if (is_hf_folder(from) && !format::is_step(from)) {
    const Settings settings = read_settings(from);
    return model_of(family_of(settings), settings);
  }
  return config_of(format::Checkpoint(format::find_step(from))).model;
}

void refuse_difference(const config::Config& asked, const config::Config& there,
                       const config::Key& key) {
  const config::Value wanted = config::get(key, asked), found = config::get(key, there);
  if (wanted == found) return;
  const bool from_hf = is_hf_folder(there.model.from) && !format::is_step(there.model.from);
  if (key.name == "model.seq" && asked.model.seq < there.model.seq) return;
  if (key.name == "model.rope_pairs" && from_hf) return;  // rows are dealt out
  throw ConfigError(fmt::format("{} = {}, but model.from = \"{}\" has {}; leave it out{}", key.name,
                                config::to_text(wanted), there.model.from, config::to_text(found),
                                key.name == "model.vocab"
                                    ? ", or change the vocabulary by `trireme ckpt import --vocab`"
                                    : ""));
}

}  // namespace

void complete_model(config::Config& config, const std::set<std::string_view>& given) {
  if (config.model.from.empty()) return;
  const auto resumed = resumed_model(config);
  config::Config there = config;
  there.model = resumed ? *resumed : model_at(config.model.from);
  there.model.from = config.model.from;
  // A scaling is relative to the length that was trained on, also if fewer positions are wanted.
  if (!resumed && there.model.rope_scaling != config::RopeScaling::None &&
      there.model.rope_seq == 0)
    there.model.rope_seq = there.model.seq;
  for (const config::Key& key : config::keys())
    if (is_of_weights(key) && !given.contains(key.name))
      config::set(key, config, config::get(key, there));
  if (resumed) return;  // resuming compares them
  const config::Config asked = config::resolved(config);
  there = config::resolved(there);
  for (const config::Key& key : config::keys())
    if (is_of_weights(key) && given.contains(key.name)) refuse_difference(asked, there, key);
  open_weights(asked);  // one process refuses, before any rank starts
}

void refuse_adapters(const format::Checkpoint& saved) {
  if (saved.index().extra.contains("lora"))
    throw ConfigError(fmt::format(
        "{} holds low-rank adapters without the weights that they belong to; put them together "
        "first: trireme ckpt merge {} OUT",
        saved.folder(), saved.folder()));
}

StartWeights open_weights(const config::Config& config) {
  const std::string& from = config.model.from;
  StartWeights start;
  if (is_hf_folder(from) && !format::is_step(from)) {
    auto weights = std::make_unique<HfWeights>(from, config.model);
    for (const MappedTensor& tensor : weights->tensors()) start.names.push_back(tensor.name);
    start.source = std::move(weights);
    start.what = "a Hugging Face folder";
    return start;
  }
  const std::string step = format::find_step(from);
  auto weights = std::make_unique<CheckpointWeights>(step, config.model);
  refuse_adapters(weights->saved());
  for (const auto& [name, tensor] : weights->saved().index().tensors)
    if (name.find('/') == name.npos || name.starts_with("buffer/")) start.names.push_back(name);
  start.source = std::move(weights);
  start.what = fmt::format("a checkpoint, {}", step);
  return start;
}

}  // namespace trireme::exchange
