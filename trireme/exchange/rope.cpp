#include "trireme/exchange/rope.h"

#include <fmt/format.h>

#include "trireme/core/error.h"

namespace trireme::exchange {

namespace {

using config::RopeScaling;

/// Transformers calls no scaling "default"; the other names are the same.
RopeScaling scaling_of(const Settings& rope) {
  const char* key = rope.json().contains("rope_type") ? "rope_type" : "type";
  const std::string kind = rope.text(key, "default");
  if (kind == "default") return RopeScaling::None;
  for (const auto& word : config::Words<RopeScaling>::all)
    if (word.text == kind && word.choice != RopeScaling::None) return word.choice;
  rope.refuse(key, "a kind of scaling that is not built; there are linear, dynamic, yarn, llama3");
}

}  // namespace

void read_rope(const Settings& settings, config::Model& model) {
  model.rope_pairs = config::RopePairs::Halves;
  model.rope_theta = settings.number("rope_theta", 10000);
  settings.need("partial_rotary_factor", 1.0);
  const auto newer = settings.inside("rope_parameters");
  const auto rope = newer ? newer : settings.inside("rope_scaling");
  if (!rope) return;
  model.rope_theta = rope->number("rope_theta", model.rope_theta);
  rope->need("partial_rotary_factor", 1.0);
  model.rope_scaling = scaling_of(*rope);
  if (model.rope_scaling == RopeScaling::None) return;
  model.rope_factor = rope->number("factor");
  model.rope_seq = model.rope_scaling == RopeScaling::Dynamic
                       ? model.seq
                       : rope->whole("original_max_position_embeddings", model.seq);
  if (model.rope_scaling == RopeScaling::Llama3) {
    model.rope_low = rope->number("low_freq_factor");
    model.rope_high = rope->number("high_freq_factor");
  }
  if (model.rope_scaling != RopeScaling::Yarn) return;
  rope->need("beta_fast", 32);
  rope->need("beta_slow", 1);
  rope->need("truncate", true);
  for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"}) rope->need(key, nullptr);
}

void write_rope(const config::Model& model, core::Json& settings) {
  settings.erase("rope_parameters");
  settings["rope_theta"] = model.rope_theta;
  settings["rope_scaling"] = nullptr;
  if (model.rope_scaling == RopeScaling::None) return;
  const int64_t before = model.rope_seq > 0 ? model.rope_seq : model.seq;
  core::Json rope = {{"rope_type", to_string(model.rope_scaling)}, {"factor", model.rope_factor}};
  if (model.rope_scaling == RopeScaling::Llama3) {
    rope["low_freq_factor"] = model.rope_low;
    rope["high_freq_factor"] = model.rope_high;
  }
  // Dynamic scaling begins where the configuration says that positions end.
  if (model.rope_scaling == RopeScaling::Dynamic)
    settings["max_position_embeddings"] = before;
  else
    rope["original_max_position_embeddings"] = before;
  settings["rope_scaling"] = std::move(rope);
}

}  // namespace trireme::exchange
