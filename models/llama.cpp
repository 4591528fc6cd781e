#include "models/llama.h"

#include <cmath>

#include "models/decoder_memory.h"
#include "models/uncut.h"
#include "trireme/core/error.h"
#include "trireme/nn/plan.h"

namespace trireme::models {

using nn::Flow;

namespace {

constexpr double kLlamaDeviation = 0.02;

const nn::Plan kLlamaPlan = {{"embed", nn::Style::Vocabulary},
                             {"drop", nn::Style::Positions},
                             {"layers.*", nn::Style::Positions},
                             {"layers.*.norm_*", nn::Style::Positions},
                             {"layers.*.drop_*", nn::Style::Positions},
                             {"layers.*.attn", nn::Style::Positions},
                             {"layers.*.attn.qkv", nn::Style::Column},
                             {"layers.*.attn.proj", nn::Style::Row},
                             {"norm", nn::Style::Positions},
                             {"lm_head", nn::Style::Vocabulary}};
const nn::Plan kLlamaMlpPlan = {{"layers.*.mlp.gate_up", nn::Style::Column},
                                {"layers.*.mlp.gate", nn::Style::Column},
                                {"layers.*.mlp.down", nn::Style::Row}};

nn::Plan plan_of(const LlamaOptions& options) {
  nn::Plan plan = kLlamaPlan;
  const nn::Plan more = options.moe ? nn::moe_plan("layers.*.moe", *options.moe) : kLlamaMlpPlan;
  plan.insert(plan.end(), more.begin(), more.end());
  return plan;
}

/// Every size that was left to another one.
LlamaOptions completed(LlamaOptions options) {
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.head_dim == 0) {
    core::check(options.hidden % options.heads == 0,
                "llama: width {} must be a multiple of heads {}, or head_dim must be given",
                options.hidden, options.heads);
    options.head_dim = options.hidden / options.heads;
  }
  if (options.ffn == 0) options.ffn = 4 * options.hidden;
  if (options.moe) options.moe->experts.gated = true;
  options.rotary.head = options.head_dim;
  if (options.rotary.trained_on == 0) options.rotary.trained_on = options.seq;
  return options;
}

}  // namespace

LlamaBlockImpl::LlamaBlockImpl(const LlamaOptions& options,
                               std::shared_ptr<const nn::Rotary> rotary)
    : dropout_(options.dropout) {
  using Into = nn::LinearImpl::Options;
  const double residual = kLlamaDeviation / std::sqrt(2 * static_cast<double>(options.layers));
  const nn::RmsNormImpl::Options branch{.epsilon = options.norm_eps, .passes_input = true};
  norm_1 = register_module("norm_1", nn::RmsNorm(options.hidden, branch));
  attn = register_module("attn", nn::CausalAttention(nn::CausalAttentionImpl::Options{
                                     .width = options.hidden,
                                     .heads = options.heads,
                                     .kv_heads = options.kv_heads,
                                     .head = options.head_dim,
                                     .dropout = options.attention_dropout,
                                     .in_deviation = kLlamaDeviation,
                                     .out_deviation = residual,
                                     .in_bias = options.qkv_bias,
                                     .out_bias = false,
                                     .rotary = std::move(rotary),
                                     .in_name = "qkv",
                                     .out_name = "proj"}));
  drop_1 = register_module("drop_1", nn::Dropout(options.dropout));
  norm_2 = register_module("norm_2", nn::RmsNorm(options.hidden, branch));
  if (options.moe) {
    nn::MoeImpl::Options mixture = *options.moe;
    mixture.router.width = options.hidden;
    mixture.router.deviation = mixture.experts.in_deviation = kLlamaDeviation;
    mixture.experts.out_deviation = residual;
    moe = register_module("moe", nn::Moe(mixture));
    drop_2 = register_module("drop_2", nn::Dropout(options.dropout));
    return;
  }
  auto mlp = std::make_shared<torch::nn::Module>("mlp");
  const Section half{.size = options.ffn};
  gate_up = mlp->register_module(
      "gate_up",
      nn::Linear(options.hidden, 2 * options.ffn,
                 Into{.bias = false, .deviation = kLlamaDeviation, .out_sections = {half, half}}));
  gate = mlp->register_module("gate", nn::SwiGlu(options.ffn));
  down = mlp->register_module(
      "down", nn::Linear(options.ffn, options.hidden, Into{.bias = false, .deviation = residual}));
  register_module("mlp", mlp);
  drop_2 = register_module("drop_2", nn::Dropout(options.dropout));
}

// Without dropout the last Linear of a branch adds its result to the stream. With it the sum comes
// after the mask.
Flow LlamaBlockImpl::attend(const Flow& in) {
  const Flow branch = norm_1->forward(in);  // {normalized, stream}
  if (dropout_ == 0) return attn->forward(branch);
  const Flow attended = attn->forward(branch.first());
  return in.with(branch.tensors[1] + drop_1->forward(attended).x());
}

Flow LlamaBlockImpl::widen(const Flow& in) {
  const Flow branch = norm_2->forward(in);
  Flow wide = gate->forward(gate_up->forward(branch.first()));
  wide.tensors.push_back(branch.tensors[1]);
  return wide;
}

Flow LlamaBlockImpl::narrow(const Flow& in) {
  if (dropout_ == 0) return down->forward(in);
  const Flow narrow = down->forward(in.first());
  return narrow.with(in.tensors.back() + drop_2->forward(narrow).x());
}

Flow LlamaBlockImpl::mix(const Flow& in) {
  const Flow branch = norm_2->forward(in);
  const Flow mixed = moe->forward(branch.first());
  return in.with(branch.tensors[1] + drop_2->forward(mixed).x());
}

Flow LlamaBlockImpl::compute(const Flow& in) {
  return moe ? mix(attend(in)) : narrow(widen(attend(in)));
}

nn::Link LlamaBlockImpl::link(const std::string& name) {
  if (moe)
    return {.name = name,
            .layers = {std::static_pointer_cast<nn::LayerImpl>(shared_from_this())},
            .inside = {{.name = name + ".attn",
                        .layers = {norm_1.ptr(), attn.ptr(), drop_1.ptr()},
                        .run = [this](const Flow& in) { return attend(in); }},
                       {.name = name + ".moe",
                        .layers = {norm_2.ptr(), moe.ptr(), drop_2.ptr()},
                        .run = [this](const Flow& in) { return mix(in); }}}};
  return {.name = name,
          .layers = {std::static_pointer_cast<nn::LayerImpl>(shared_from_this())},
          .inside = {{.name = name + ".attn",
                      .layers = {norm_1.ptr(), attn.ptr(), drop_1.ptr()},
                      .run = [this](const Flow& in) { return attend(in); }},
                     {.name = name + ".gate_up",
                      .layers = {norm_2.ptr(), gate_up.ptr(), gate.ptr()},
                      .run = [this](const Flow& in) { return widen(in); }},
                     {.name = name + ".down",
                      .layers = {down.ptr(), drop_2.ptr()},
                      .run = [this](const Flow& in) { return narrow(in); }}}};
}

LlamaImpl::LlamaImpl(LlamaOptions options, const Mesh& mesh)
    : options_(completed(options)),
      positions_(head_and_tail(options.seq, mesh.size(Axis::Context), mesh.coord(Axis::Context))) {
  if (!options_.moe) require_uncut(mesh, "llama", {Axis::Expert});
  embed = register_module("embed", nn::Embedding(options_.vocab, options_.hidden, kLlamaDeviation));
  drop = register_module("drop", nn::Dropout(options_.dropout));
  auto blocks = std::make_shared<torch::nn::Module>("layers");
  const auto rotary = std::make_shared<const nn::Rotary>(options_.rotary);
  for (int64_t i = 0; i < options_.layers; ++i)
    layers.push_back(blocks->register_module(std::to_string(i), LlamaBlock(options_, rotary)));
  register_module("layers", blocks);
  norm = register_module(
      "norm", nn::RmsNorm(options_.hidden, nn::RmsNormImpl::Options{.epsilon = options_.norm_eps}));
  lm_head = register_module(
      "lm_head",
      nn::Head(options_.hidden, options_.vocab,
               nn::HeadImpl::Options{.bias = false,
                                     .deviation = kLlamaDeviation,
                                     .tied = options_.tie ? embed->weight : at::Tensor()}));
  nn::cut(*this, plan_of(options_), mesh, options_.sequence, options_.context);
}

Flow LlamaImpl::embedded(const Flow& tokens) {
  return drop->forward(embed->forward(tokens));
}

nn::Chain LlamaImpl::chain() {
  nn::Chain chain;
  chain.links.push_back({.name = "embed",
                         .layers = {embed.ptr(), drop.ptr()},
                         .run = [this](const Flow& tokens) { return embedded(tokens); },
                         .counts = false});
  for (std::size_t i = 0; i < layers.size(); ++i)
    chain.links.push_back(layers[i]->link(fmt::format("layers.{}", i)));
  chain.head = {.name = "head", .layers = {norm.ptr(), lm_head.ptr()}, .counts = false};
  chain.loss = [this](const Flow& in, const at::Tensor& targets) {
    return lm_head->loss(norm->forward(in), targets);
  };
  return chain;
}

std::optional<nn::MicroBatch> LlamaImpl::example(int64_t rows) const {
  return nn::counting_tokens(rows, positions_, options_.vocab);
}

Flow LlamaImpl::compute(const Flow& tokens) {
  Flow flow = embedded(tokens);
  for (const LlamaBlock& block : layers) flow = block.ptr()->forward(std::move(flow));
  return lm_head->forward(norm->forward(std::move(flow)));
}

std::vector<std::shared_ptr<nn::LayerImpl>> LlamaImpl::blocks() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const LlamaBlock& block : layers) all.push_back(block.ptr());
  return all;
}

std::vector<std::shared_ptr<nn::LayerImpl>> LlamaImpl::attentions() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const LlamaBlock& block : layers) all.push_back(block->attn.ptr());
  return all;
}

int64_t LlamaImpl::activation_bytes(const nn::Batching& of) const {
  return decoder_activation_bytes({.layers = options_.layers,
                                   .hidden = options_.hidden,
                                   .heads = options_.heads,
                                   .kv_heads = options_.kv_heads,
                                   .head = options_.head_dim,
                                   .ffn = options_.moe ? mixture_ffn(*options_.moe) : options_.ffn,
                                   .seq = options_.seq,
                                   .vocab = options_.vocab,
                                   .dropout = options_.dropout,
                                   .attention_dropout = options_.attention_dropout,
                                   .tie = options_.tie,
                                   .gated = true,
                                   .top_k = options_.moe ? options_.moe->router.top_k : 0,
                                   .experts = options_.moe ? options_.moe->router.experts : 1,
                                   .sequence = options_.sequence,
                                   .context = options_.context},
                                  of);
}

}  // namespace trireme::models
