#include "trireme/config/validate.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "trireme/config/keys.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::config {

namespace {

template <class... Args>
void need(bool ok, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!ok) throw ConfigError(fmt::format(sentence, std::forward<Args>(args)...));
}

/// The others leave heads at their default, which must not be in the way.
bool has_attention(const Model& model) {
  return model.kind != "mlp" && model.kind != "resnet";
}

void validate_model(const Model& model) {
  if (has_attention(model)) {
    need(model.hidden % model.heads == 0, "model.hidden = {} is not a multiple of model.heads = {}",
         model.hidden, model.heads);
    need(model.kv_heads > 0 && model.heads % model.kv_heads == 0,
         "model.heads = {} is not a multiple of model.kv_heads = {}", model.heads, model.kv_heads);
  }
  if (model.kind == "moe-gpt")
    need(model.top_k <= model.experts, "model.top_k = {} is more than model.experts = {}",
         model.top_k, model.experts);
}

/// "time", "params", or "3,5,5,3".
bool is_balance(std::string_view text) {
  if (text == "time" || text == "params") return true;
  for (;;) {
    const auto comma = text.find(',');
    const auto layers = core::parse_int(text.substr(0, comma));
    if (!layers || *layers < 1) return false;
    if (comma == text.npos) return true;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

Config resolved(Config config) {
  if (config.model.kv_heads == 0) config.model.kv_heads = config.model.heads;
  if (config.model.ffn == 0) config.model.ffn = 4 * config.model.hidden;
  return config;
}

void validate(const Config& config) {
  for (const Key& key : keys())
    if (const auto problem = problem_with(key, get(key, config))) throw ConfigError(*problem);

  const auto& [run, data, mesh] = std::tie(config.run, config.data, config.mesh);
  need(run.epochs == 0 || run.steps == 0,
       "run.epochs = {} and run.steps = {} both say how long to train; give one of them",
       run.epochs, run.steps);
  validate_model(config.model);
  need(data.kind == "markov" || !data.path.empty(),
       "data.kind = \"{}\" needs data.path, which is empty", data.kind);
  need(mesh.replica != 0 || mesh.shard != 0,
       "mesh.replica = 0 and mesh.shard = 0 cannot both be what is left of the world");
  need(is_balance(config.pipeline.balance),
       "pipeline.balance = {} is neither \"time\" nor \"params\" nor a list of layers such as "
       "\"3,5,5,3\"",
       shortened(to_text(config.pipeline.balance)));
}

}  // namespace trireme::config
