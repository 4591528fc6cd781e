// GPT-2. Its linear layers are Conv1D, which keep [inputs, outputs].
#include <fmt/format.h>

#include "trireme/core/error.h"
#include "trireme/exchange/family.h"

namespace trireme::exchange {

namespace {

constexpr double kGpt2NormEps = 1e-5;
constexpr const char* kGelu = "gelu_new";

config::Model read_gpt2(const Settings& settings) {
  for (const auto& [key, wanted] : {std::pair<const char*, core::Json>{"scale_attn_weights", true},
                                    {"scale_attn_by_inverse_layer_idx", false},
                                    {"add_cross_attention", false},
                                    {"layer_norm_epsilon", kGpt2NormEps}})
    settings.need(key, wanted);
  const std::string gelu = settings.text("activation_function", kGelu);
  if (gelu != kGelu && gelu != "gelu_pytorch_tanh")  // two names of one function
    settings.need("activation_function", kGelu);
  config::Model model;
  model.kind = "gpt";
  model.layers = settings.whole("n_layer");
  model.hidden = settings.whole("n_embd");
  model.heads = settings.whole("n_head");
  model.ffn = settings.whole("n_inner", 0);
  model.seq = settings.whole("n_positions");
  model.vocab = settings.whole("vocab_size");
  model.tie = settings.truth("tie_word_embeddings", true);
  model.dropout = settings.number("resid_pdrop", 0.1);
  model.attention_dropout = settings.number("attn_pdrop", 0.1);
  return model;
}

void write_gpt2(const config::Model& model, core::Json& settings) {
  settings.update({{"activation_function", kGelu},
                   {"attn_pdrop", model.attention_dropout},
                   {"embd_pdrop", model.dropout},
                   {"layer_norm_epsilon", kGpt2NormEps},
                   {"n_embd", model.hidden},
                   {"n_head", model.heads},
                   {"n_inner", model.ffn},
                   {"n_layer", model.layers},
                   {"n_positions", model.seq},
                   {"resid_pdrop", model.dropout},
                   {"tie_word_embeddings", model.tie},
                   {"vocab_size", model.vocab}});
}

void refuse_gpt2(const config::Model& model) {
  if (model.kv_heads != 0 && model.kv_heads != model.heads)
    throw ConfigError(fmt::format(
        "GPT-2 of transformers has as many key and value heads as heads, but model.kv_heads = {} "
        "and model.heads = {}: this model cannot be exported",
        model.kv_heads, model.heads));
}

}  // namespace

const Family& gpt2() {
  using enum Size;
  constexpr Form kT = Form::Transposed;
  static const Family family{
      .kind = "gpt",
      .model_type = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .base_prefix = "transformer.",
      .table =
          {
              {"wte.weight", {{"transformer.wte.weight", Vocab}}, Hidden},
              {"wpe.weight", {{"transformer.wpe.weight", Positions}}, Hidden},
              {"h.*.ln_1.weight", {{"transformer.h.*.ln_1.weight", Hidden}}},
              {"h.*.ln_1.bias", {{"transformer.h.*.ln_1.bias", Hidden}}},
              {"h.*.attn.c_attn.weight", {{"transformer.h.*.attn.c_attn.weight", Qkv, kT}}, Hidden},
              {"h.*.attn.c_attn.bias", {{"transformer.h.*.attn.c_attn.bias", Qkv}}},
              {"h.*.attn.c_proj.weight", {{"transformer.h.*.attn.c_proj.weight", Hidden, kT}}, Q},
              {"h.*.attn.c_proj.bias", {{"transformer.h.*.attn.c_proj.bias", Hidden}}},
              {"h.*.ln_2.weight", {{"transformer.h.*.ln_2.weight", Hidden}}},
              {"h.*.ln_2.bias", {{"transformer.h.*.ln_2.bias", Hidden}}},
              {"h.*.mlp.c_fc.weight", {{"transformer.h.*.mlp.c_fc.weight", Ffn, kT}}, Hidden},
              {"h.*.mlp.c_fc.bias", {{"transformer.h.*.mlp.c_fc.bias", Ffn}}},
              {"h.*.mlp.c_proj.weight", {{"transformer.h.*.mlp.c_proj.weight", Hidden, kT}}, Ffn},
              {"h.*.mlp.c_proj.bias", {{"transformer.h.*.mlp.c_proj.bias", Hidden}}},
              {"ln_f.weight", {{"transformer.ln_f.weight", Hidden}}},
              {"ln_f.bias", {{"transformer.ln_f.bias", Hidden}}},
              {"lm_head.weight", {{"lm_head.weight", Vocab}}, Hidden, When::Untied},
          },
      .ignored = {".attn.bias", ".attn.masked_bias"},
      .read = read_gpt2,
      .write = write_gpt2,
      .refuse = refuse_gpt2};
  return family;
}

}  // namespace trireme::exchange
