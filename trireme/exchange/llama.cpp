// Llama; Qwen 2, which is the same with biases of q, k and v; and Mixtral, which has experts.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/exchange/family.h"
#include "trireme/exchange/rope.h"

namespace trireme::exchange {

namespace {

config::Model read_llama(const Settings& settings) {
  for (const auto& [key, wanted] : {std::pair<const char*, core::Json>{"hidden_act", "silu"},
                                    {"attention_bias", false},
                                    {"mlp_bias", false},
                                    {"use_sliding_window", false}})
    settings.need(key, wanted);
  config::Model model;
  model.kind = "llama";
  model.layers = settings.whole("num_hidden_layers");
  model.hidden = settings.whole("hidden_size");
  model.heads = settings.whole("num_attention_heads");
  model.kv_heads = settings.whole("num_key_value_heads", model.heads);
  model.head_dim = settings.whole("head_dim", 0);
  model.ffn = settings.whole("intermediate_size");
  model.seq = settings.whole("max_position_embeddings");
  model.vocab = settings.whole("vocab_size");
  model.norm_eps = settings.number("rms_norm_eps", 1e-6);
  model.tie = settings.truth("tie_word_embeddings", false);
  model.attention_dropout = settings.number("attention_dropout", 0);
  read_rope(settings, model);
  return model;
}

config::Model read_qwen2(const Settings& settings) {
  config::Model model = read_llama(settings);
  model.qkv_bias = true;
  return model;
}

config::Model read_mixtral(const Settings& settings) {
  settings.need("router_jitter_noise", 0.0);
  config::Model model = read_llama(settings);
  if (const int64_t window = settings.whole("sliding_window", 0); window > 0 && window < model.seq)
    settings.refuse("sliding_window",
                    fmt::format("less than the {} positions: attention to a window "
                                "is not built",
                                model.seq));
  model.kind = "moe-llama";
  model.experts = settings.whole("num_local_experts");
  model.top_k = settings.whole("num_experts_per_tok");
  model.expert_ffn = model.ffn;
  model.router = config::RouterKind::Normalised;
  model.balance = settings.number("router_aux_loss_coef", 0.001);
  return model;
}

void write_llama(const config::Model& model, core::Json& settings) {
  settings.update({{"attention_dropout", model.attention_dropout},
                   {"hidden_act", "silu"},
                   {"hidden_size", model.hidden},
                   {"intermediate_size", model.ffn},
                   {"max_position_embeddings", model.seq},
                   {"num_attention_heads", model.heads},
                   {"num_hidden_layers", model.layers},
                   {"num_key_value_heads", model.kv_heads},
                   {"rms_norm_eps", model.norm_eps},
                   {"tie_word_embeddings", model.tie},
                   {"vocab_size", model.vocab}});
  // Qwen 2 has no such value: its heads divide the width.
  if (!model.qkv_bias || model.head_dim * model.heads != model.hidden)
    settings["head_dim"] = model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
  write_rope(model, settings);
}

void write_mixtral(const config::Model& model, core::Json& settings) {
  write_llama(model, settings);
  settings.update({{"intermediate_size", model.expert_ffn},
                   {"num_local_experts", model.experts},
                   {"num_experts_per_tok", model.top_k},
                   {"router_aux_loss_coef", model.balance},
                   {"sliding_window", nullptr}});
}

void refuse_llama(const config::Model& model) {
  if (model.dropout > 0)
    throw ConfigError(fmt::format(
        "Llama of transformers has no dropout of residuals, but model.dropout = {}: set it to 0 "
        "and train on, or export the weights alone with your own tools",
        model.dropout));
}

void refuse_mixtral(const config::Model& model) {
  refuse_llama(model);
  if (model.router != config::RouterKind::Normalised || model.shared_experts > 0)
    throw ConfigError(fmt::format(
        "Mixtral of transformers has model.router = \"normalised\" and no shared experts, but this "
        "model has model.router = {} and model.shared_experts = {}",
        to_string(model.router), model.shared_experts));
  if (model.expert_dropout > 0)
    throw ConfigError(fmt::format(
        "Mixtral of transformers has no dropout inside experts, but model.expert_dropout = {}: set "
        "it to 0 and train on",
        model.expert_dropout));
}

std::vector<TableRow> llama_table() {
  using enum Size;
  constexpr Form kRotary = Form::Rotary;
  constexpr When kBias = When::QkvBias;
  return {
      {"embed.weight", {{"model.embed_tokens.weight", Vocab}}, Hidden},
      {"layers.*.norm_1.weight", {{"model.layers.*.input_layernorm.weight", Hidden}}},
      {"layers.*.attn.qkv.weight",
       {{"model.layers.*.self_attn.q_proj.weight", Q, kRotary},
        {"model.layers.*.self_attn.k_proj.weight", Kv, kRotary},
        {"model.layers.*.self_attn.v_proj.weight", Kv}},
       Hidden},
      {"layers.*.attn.qkv.bias",
       {{"model.layers.*.self_attn.q_proj.bias", Q, kRotary},
        {"model.layers.*.self_attn.k_proj.bias", Kv, kRotary},
        {"model.layers.*.self_attn.v_proj.bias", Kv}},
       One,
       kBias},
      {"layers.*.attn.proj.weight", {{"model.layers.*.self_attn.o_proj.weight", Hidden}}, Q},
      {"layers.*.norm_2.weight", {{"model.layers.*.post_attention_layernorm.weight", Hidden}}},
      {"layers.*.mlp.gate_up.weight",
       {{"model.layers.*.mlp.gate_proj.weight", Ffn}, {"model.layers.*.mlp.up_proj.weight", Ffn}},
       Hidden},
      {"layers.*.mlp.down.weight", {{"model.layers.*.mlp.down_proj.weight", Hidden}}, Ffn},
      {"norm.weight", {{"model.norm.weight", Hidden}}},
      {"lm_head.weight", {{"lm_head.weight", Vocab}}, Hidden, When::Untied}};
}

/// The same with experts in place of the mlp.
std::vector<TableRow> mixtral_table() {
  using enum Size;
  std::vector<TableRow> table = llama_table();
  std::erase_if(table, [](const TableRow& row) {
    return row.name.find(".mlp.") != row.name.npos || row.when == When::QkvBias;
  });
  const auto norm = std::ranges::find(table, "layers.*.norm_2.weight", &TableRow::name);
  table.insert(norm + 1, {{"layers.*.moe.router.weight",
                           {{"model.layers.*.block_sparse_moe.gate.weight", Experts}},
                           Hidden},
                          {"layers.*.moe.experts.gate_up",
                           {{"model.layers.*.block_sparse_moe.experts.#.w1.weight", ExpertFfn},
                            {"model.layers.*.block_sparse_moe.experts.#.w3.weight", ExpertFfn}},
                           Hidden},
                          {"layers.*.moe.experts.down",
                           {{"model.layers.*.block_sparse_moe.experts.#.w2.weight", Hidden}},
                           ExpertFfn}});
  return table;
}

}  // namespace

const Family& llama() {
  static const Family family{.kind = "llama",
                             .model_type = "llama",
                             .architecture = "LlamaForCausalLM",
                             .base_prefix = "model.",
                             .table = llama_table(),
                             .ignored = {".rotary_emb.inv_freq"},
                             .read = read_llama,
                             .write = write_llama,
                             .refuse = refuse_llama};
  return family;
}

const Family& qwen2() {
  static const Family family = [] {
    Family same = llama();
    same.model_type = "qwen2";
    same.architecture = "Qwen2ForCausalLM";
    same.read = read_qwen2;
    return same;
  }();
  return family;
}

const Family& mixtral() {
  static const Family family = [] {
    Family same = llama();
    same.kind = "moe-llama";
    same.model_type = "mixtral";
    same.architecture = "MixtralForCausalLM";
    same.table = mixtral_table();
    same.read = read_mixtral;
    same.write = write_mixtral;
    same.refuse = refuse_mixtral;
    return same;
  }();
  return family;
}

}  // namespace trireme::exchange
