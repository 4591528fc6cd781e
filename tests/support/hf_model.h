#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/scratch.h"
#include "trireme/core/json.h"
#include "trireme/format/dtype.h"
#include "trireme/format/file.h"
#include "trireme/format/safetensors.h"

namespace trireme::test {

/// A model as a Hugging Face folder has it, with random bits. The names and shapes are spelled out
/// here, as transformers saves them, and not taken from the tables that are tested.
struct HfModel {
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes = {};
  };
  core::Json config;
  std::map<std::string, Tensor> tensors;

  /// Of a large one, 1 MiB is random and is repeated.
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape) {
    const auto bytes = static_cast<std::size_t>(*format::checked_bytes(dtype, shape));
    constexpr std::size_t kMostRandom = 1 << 20;
    std::string all = random_bytes(static_cast<int64_t>(std::min(bytes, kMostRandom)),
                                   static_cast<unsigned>(tensors.size() + 1));
    while (all.size() < bytes) all.append(all, 0, bytes - all.size());
    tensors[name] = {dtype, std::move(shape), std::move(all)};
  }

  /// Writes it as `files` files.
  void write(const std::string& folder, int files = 1) const {
    ::mkdir(folder.c_str(), 0755);
    format::write_file(folder + "/config.json", config.dump(2));
    core::Json map = core::Json::object();
    std::vector<std::vector<std::string>> names(static_cast<std::size_t>(files));
    std::size_t next = 0;
    for (const auto& [name, tensor] : tensors) names[next++ % names.size()].push_back(name);
    for (int i = 0; i < files; ++i) {
      const std::string file =
          files == 1 ? "model.safetensors" : fmt::format("model-{}.safetensors", i);
      std::vector<format::Entry> entries;
      for (const std::string& name : names[static_cast<std::size_t>(i)]) {
        entries.push_back({name, tensors.at(name).dtype, tensors.at(name).shape});
        map[name] = file;
      }
      format::SafetensorsWriter writer(folder + "/" + file, entries, {{"format", "pt"}});
      for (const format::Entry& entry : entries) {
        const std::string& bytes = tensors.at(entry.name).bytes;
        writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
      }
      writer.finish();
    }
    if (files > 1)
      format::write_file(
          folder + "/model.safetensors.index.json",
          core::Json{{"metadata", core::Json::object()}, {"weight_map", map}}.dump());
  }
};

struct HfSizes {
  int64_t layers = 2, hidden = 12, heads = 3, kv_heads = 3, ffn = 20, seq = 10, vocab = 31;
  bool tie = true;
};

inline HfModel hf_gpt2(const std::string& dtype, HfSizes of = {}) {
  HfModel model;
  model.config = {
      {"model_type", "gpt2"},   {"n_layer", of.layers}, {"n_embd", of.hidden},
      {"n_head", of.heads},     {"n_inner", of.ffn},    {"n_positions", of.seq},
      {"vocab_size", of.vocab}, {"eos_token_id", 7},    {"tie_word_embeddings", of.tie}};
  const int64_t h = of.hidden;
  model.add("transformer.wte.weight", dtype, {of.vocab, h});
  model.add("transformer.wpe.weight", dtype, {of.seq, h});
  for (int64_t i = 0; i < of.layers; ++i) {
    const std::string block = fmt::format("transformer.h.{}.", i);
    for (const char* norm : {"ln_1", "ln_2"})
      for (const char* each : {".weight", ".bias"}) model.add(block + norm + each, dtype, {h});
    model.add(block + "attn.c_attn.weight", dtype, {h, 3 * h});
    model.add(block + "attn.c_attn.bias", dtype, {3 * h});
    model.add(block + "attn.c_proj.weight", dtype, {h, h});
    model.add(block + "attn.c_proj.bias", dtype, {h});
    model.add(block + "mlp.c_fc.weight", dtype, {h, of.ffn});
    model.add(block + "mlp.c_fc.bias", dtype, {of.ffn});
    model.add(block + "mlp.c_proj.weight", dtype, {of.ffn, h});
    model.add(block + "mlp.c_proj.bias", dtype, {h});
  }
  model.add("transformer.ln_f.weight", dtype, {h});
  model.add("transformer.ln_f.bias", dtype, {h});
  if (!of.tie) model.add("lm_head.weight", dtype, {of.vocab, h});
  return model;
}

/// Llama; with biases it is Qwen 2.
inline HfModel hf_llama(const std::string& dtype, HfSizes of, bool bias = false) {
  HfModel model;
  model.config = {{"model_type", bias ? "qwen2" : "llama"},
                  {"num_hidden_layers", of.layers},
                  {"hidden_size", of.hidden},
                  {"num_attention_heads", of.heads},
                  {"num_key_value_heads", of.kv_heads},
                  {"intermediate_size", of.ffn},
                  {"max_position_embeddings", of.seq},
                  {"rms_norm_eps", 1e-6},
                  {"rope_theta", 500000.0},
                  {"vocab_size", of.vocab},
                  {"tie_word_embeddings", of.tie}};
  const int64_t h = of.hidden, head = h / of.heads, kv = of.kv_heads * head;
  model.add("model.embed_tokens.weight", dtype, {of.vocab, h});
  for (int64_t i = 0; i < of.layers; ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    model.add(block + "input_layernorm.weight", dtype, {h});
    model.add(block + "post_attention_layernorm.weight", dtype, {h});
    for (const auto& [name, rows] : {std::pair{"q", h}, std::pair{"k", kv}, std::pair{"v", kv}}) {
      model.add(fmt::format("{}self_attn.{}_proj.weight", block, name), dtype, {rows, h});
      if (bias) model.add(fmt::format("{}self_attn.{}_proj.bias", block, name), dtype, {rows});
    }
    model.add(block + "self_attn.o_proj.weight", dtype, {h, h});
    model.add(block + "mlp.gate_proj.weight", dtype, {of.ffn, h});
    model.add(block + "mlp.up_proj.weight", dtype, {of.ffn, h});
    model.add(block + "mlp.down_proj.weight", dtype, {h, of.ffn});
  }
  model.add("model.norm.weight", dtype, {h});
  if (!of.tie) model.add("lm_head.weight", dtype, {of.vocab, h});
  return model;
}

}  // namespace trireme::test
