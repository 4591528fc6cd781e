#include "models/gpt.h"

#include <cmath>

#include "models/decoder_memory.h"
#include "models/uncut.h"
#include "trireme/core/error.h"
#include "trireme/nn/plan.h"

namespace trireme::models {

using nn::Flow;

namespace {

constexpr double kDeviation = 0.02, kPositionDeviation = 0.01;

double residual_deviation(const GptOptions& options) {
  return kDeviation / std::sqrt(2 * static_cast<double>(options.layers));
}

const nn::Plan kPlan = {{"wte", nn::Style::Vocabulary},      {"wpe", nn::Style::Positions},
                        {"drop", nn::Style::Positions},      {"h.*", nn::Style::Positions},
                        {"h.*.ln_*", nn::Style::Positions},  {"h.*.drop_*", nn::Style::Positions},
                        {"h.*.attn", nn::Style::Positions},  {"h.*.attn.c_attn", nn::Style::Column},
                        {"h.*.attn.c_proj", nn::Style::Row}, {"ln_f", nn::Style::Positions},
                        {"lm_head", nn::Style::Vocabulary}};
const nn::Plan kMlpPlan = {{"h.*.mlp.c_fc", nn::Style::Column}, {"h.*.mlp.c_proj", nn::Style::Row}};

nn::Plan plan_of(const GptOptions& options) {
  nn::Plan plan = kPlan;
  const nn::Plan more = options.moe ? nn::moe_plan("h.*.moe", *options.moe) : kMlpPlan;
  plan.insert(plan.end(), more.begin(), more.end());
  return plan;
}

/// The Flow before the stream was added to it.
Flow without_last(Flow all) {
  all.tensors.pop_back();
  return all;
}

}  // namespace

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : dropout_(options.dropout), exact_gelu_(options.exact_gelu) {
  using Into = nn::LinearImpl::Options;
  const double residual = residual_deviation(options);
  const nn::LayerNormImpl::Options branch{.epsilon = options.epsilon, .passes_input = true};
  ln_1 = register_module("ln_1", nn::LayerNorm(options.hidden, branch));
  attn = register_module("attn",
                         nn::CausalAttention(nn::CausalAttentionImpl::Options{
                             .width = options.hidden,
                             .heads = options.heads,
                             .kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads,
                             .dropout = options.attention_dropout,
                             .sees = options.sees,
                             .in_deviation = kDeviation,
                             .out_deviation = residual}));
  drop_1 = register_module("drop_1", nn::Dropout(options.dropout));
  ln_2 = register_module("ln_2", nn::LayerNorm(options.hidden, branch));
  if (options.moe) {
    nn::MoeImpl::Options mixture = *options.moe;
    mixture.router.width = options.hidden;
    mixture.router.deviation = mixture.experts.in_deviation = kDeviation;
    mixture.experts.out_deviation = residual;
    moe = register_module("moe", nn::Moe(mixture));
    drop_2 = register_module("drop_2", nn::Dropout(options.dropout));
    return;
  }
  const int64_t ffn = options.ffn > 0 ? options.ffn : 4 * options.hidden;
  auto mlp = std::make_shared<torch::nn::Module>("mlp");
  c_fc = mlp->register_module(
      "c_fc",
      nn::Linear(options.hidden, ffn, Into{.deviation = kDeviation, .gelu = !options.exact_gelu}));
  c_proj =
      mlp->register_module("c_proj", nn::Linear(ffn, options.hidden, Into{.deviation = residual}));
  register_module("mlp", mlp);
  drop_2 = register_module("drop_2", nn::Dropout(options.dropout));
}

// Without dropout the last Linear of a branch adds its result to the stream. With it the sum comes
// after the mask.
Flow GptBlockImpl::attend(const Flow& in) {
  const Flow branch = ln_1->forward(in);  // {normalized, stream}
  if (dropout_ == 0) return attn->forward(branch);
  const Flow attended = attn->forward(branch.first());
  return in.with(branch.tensors[1] + drop_1->forward(attended).x());
}

Flow GptBlockImpl::widen(const Flow& in) {
  const Flow branch = ln_2->forward(in);
  Flow wide = c_fc->forward(branch.first());  // {gelu}, or on a GPU {gelu, z}
  if (exact_gelu_) wide = wide.with(at::gelu(wide.x()));
  wide.tensors.push_back(branch.tensors[1]);
  return wide;
}

/// {gelu, stream}: two tensors that a pipeline can send.
Flow GptBlockImpl::widen_plainly(const Flow& in) {
  const Flow all = widen(in);
  Flow wide = nn::gelu_from(without_last(all));
  wide.tensors.push_back(all.tensors.back());
  return wide;
}

Flow GptBlockImpl::narrow(const Flow& in) {
  if (dropout_ == 0) return c_proj->forward(in);
  const Flow narrow = c_proj->forward(nn::gelu_from(without_last(in)));
  return narrow.with(in.tensors.back() + drop_2->forward(narrow).x());
}

Flow GptBlockImpl::mix(const Flow& in) {
  const Flow branch = ln_2->forward(in);
  const Flow mixed = moe->forward(branch.first());
  return in.with(branch.tensors[1] + drop_2->forward(mixed).x());
}

Flow GptBlockImpl::compute(const Flow& in) {
  return moe ? mix(attend(in)) : narrow(widen(attend(in)));
}

nn::Link GptBlockImpl::link(const std::string& name) {
  if (moe)
    return {.name = name,
            .layers = {std::static_pointer_cast<nn::LayerImpl>(shared_from_this())},
            .inside = {{.name = name + ".attn",
                        .layers = {ln_1.ptr(), attn.ptr(), drop_1.ptr()},
                        .run = [this](const Flow& in) { return attend(in); }},
                       {.name = name + ".moe",
                        .layers = {ln_2.ptr(), moe.ptr(), drop_2.ptr()},
                        .run = [this](const Flow& in) { return mix(in); }}}};
  return {.name = name,
          .layers = {std::static_pointer_cast<nn::LayerImpl>(shared_from_this())},
          .inside = {{.name = name + ".attn",
                      .layers = {ln_1.ptr(), attn.ptr(), drop_1.ptr()},
                      .run = [this](const Flow& in) { return attend(in); }},
                     {.name = name + ".fc",
                      .layers = {ln_2.ptr(), c_fc.ptr()},
                      .run = [this](const Flow& in) { return widen_plainly(in); }},
                     {.name = name + ".proj",
                      .layers = {c_proj.ptr(), drop_2.ptr()},
                      .run = [this](const Flow& in) { return narrow(in); }}}};
}

GptImpl::GptImpl(GptOptions options, const Mesh& mesh)
    : options_(options),
      positions_(head_and_tail(options.seq, mesh.size(Axis::Context), mesh.coord(Axis::Context))) {
  if (!options.moe) require_uncut(mesh, "gpt", {Axis::Expert});
  wte = register_module("wte", nn::Embedding(options.vocab, options.hidden, kDeviation));
  wpe = register_module("wpe", nn::Embedding(options.seq, options.hidden, kPositionDeviation));
  drop = register_module("drop", nn::Dropout(options.dropout));
  auto blocks = std::make_shared<torch::nn::Module>("h");
  for (int64_t i = 0; i < options.layers; ++i)
    h.push_back(blocks->register_module(std::to_string(i), GptBlock(options)));
  register_module("h", blocks);
  ln_f = register_module(
      "ln_f",
      nn::LayerNorm(options.hidden, nn::LayerNormImpl::Options{.epsilon = options.epsilon}));
  lm_head = register_module(
      "lm_head", nn::Head(options.hidden, options.vocab,
                          nn::HeadImpl::Options{.bias = false,
                                                .deviation = kDeviation,
                                                .tied = options.tie ? wte->weight : at::Tensor()}));
  nn::cut(*this, plan_of(options), mesh, options.sequence, options.context);
}

Flow GptImpl::embed(const Flow& tokens) {
  const Positions here =
      (tokens.where ? tokens.where->positions : Positions()).of(tokens.x().size(1));
  core::check(here.whole() <= options_.seq, "gpt: {} positions from {} on, but model.seq is {}",
              tokens.x().size(1), here.first(), options_.seq);
  const Flow flow = wte->forward(tokens);
  if (tokens.where && tokens.where->moving.defined())
    return flow.with(flow.x() + wpe->forward(tokens.with(tokens.where->moving)).x());
  const at::Tensor places =
      wpe->rows(flow.where ? flow.where->positions.ranges(flow.x().size(1)) : here.ranges());
  return drop->forward(flow.with(flow.x() + places));
}

nn::Chain GptImpl::chain() {
  nn::Chain chain;
  chain.links.push_back({.name = "embed",
                         .layers = {wte.ptr(), wpe.ptr(), drop.ptr()},
                         .run = [this](const Flow& tokens) { return embed(tokens); },
                         .counts = false});
  for (std::size_t i = 0; i < h.size(); ++i)
    chain.links.push_back(h[i]->link(fmt::format("h.{}", i)));
  chain.head = {.name = "head", .layers = {ln_f.ptr(), lm_head.ptr()}, .counts = false};
  chain.loss = [this](const Flow& in, const at::Tensor& targets) {
    return lm_head->loss(ln_f->forward(in), targets);
  };
  return chain;
}

std::optional<nn::MicroBatch> GptImpl::example(int64_t rows) const {
  return nn::counting_tokens(rows, positions_, options_.vocab);
}

Flow GptImpl::compute(const Flow& tokens) {
  Flow flow = embed(tokens);
  for (const GptBlock& block : h) flow = block.ptr()->forward(std::move(flow));
  return lm_head->forward(ln_f->forward(std::move(flow)));
}

std::vector<std::shared_ptr<nn::LayerImpl>> GptImpl::blocks() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const GptBlock& block : h) all.push_back(block.ptr());
  return all;
}

std::vector<std::shared_ptr<nn::LayerImpl>> GptImpl::attentions() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const GptBlock& block : h) all.push_back(block->attn.ptr());
  return all;
}

int64_t gpt_activation_bytes(const GptOptions& options, const nn::Batching& of) {
  const int64_t dense = options.ffn > 0 ? options.ffn : 4 * options.hidden;
  const auto& moe = options.moe;
  return decoder_activation_bytes(
      {.layers = options.layers,
       .hidden = options.hidden,
       .heads = options.heads,
       .kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads,
       .head = options.hidden / options.heads,
       .ffn = moe ? mixture_ffn(*moe) : dense,
       .seq = options.seq,
       .vocab = options.vocab,
       .dropout = options.dropout,
       .attention_dropout = options.attention_dropout,
       .tie = options.tie,
       .gated = moe && moe->experts.gated,
       .top_k = moe ? moe->router.top_k : 0,
       .experts = moe ? moe->router.experts : 1,
       .sequence = options.sequence,
       .context = options.context},
      of);
}

int64_t GptImpl::activation_bytes(const nn::Batching& of) const {
  return gpt_activation_bytes(options_, of);
}

}  // namespace trireme::models
