#include "models/vit.h"

#include <cmath>

#include "models/uncut.h"
#include "trireme/core/error.h"
#include "trireme/nn/plan.h"

namespace trireme::models {

using nn::Flow;

namespace {

constexpr double kVitDeviation = 0.02, kVitEpsilon = 1e-6;

// Every rank embeds whole images, and has the class token whole: between them the blocks are cut as
// those of GPT.
const nn::Plan kVitPlan = {{"embed", nn::Style::Whole},
                           {"drop", nn::Style::Positions},
                           {"h.*", nn::Style::Positions},
                           {"h.*.ln_*", nn::Style::Positions},
                           {"h.*.attn", nn::Style::Positions},
                           {"h.*.drop_*", nn::Style::Positions},
                           {"h.*.attn.c_attn", nn::Style::Column},
                           {"h.*.attn.c_proj", nn::Style::Row},
                           {"h.*.mlp.c_fc", nn::Style::Column},
                           {"h.*.mlp.c_proj", nn::Style::Row},
                           {"pool", nn::Style::Whole}};
const nn::Plan kVitHeadPlan = {{"head", nn::Style::Vocabulary}};

GptOptions gpt_blocks_of(const VitOptions& options) {
  return {.layers = options.layers,
          .hidden = options.hidden,
          .heads = options.heads,
          .kv_heads = options.kv_heads,
          .ffn = options.ffn,
          .seq = options.positions(),
          .vocab = options.classes,
          .dropout = options.dropout,
          .attention_dropout = options.attention_dropout,
          .tie = false,
          .sequence = options.sequence,
          .sees = nn::Sees::All,
          .epsilon = kVitEpsilon,
          .exact_gelu = true};
}

}  // namespace

PatchEmbeddingImpl::PatchEmbeddingImpl(const VitOptions& options) {
  const auto inputs = static_cast<double>(options.channels * options.patch * options.patch);
  patch = register_module("patch",
                          nn::Conv2d(nn::Conv2dImpl::Options{.in = options.channels,
                                                             .out = options.hidden,
                                                             .kernel = options.patch,
                                                             .stride = options.patch,
                                                             .deviation = std::sqrt(1 / inputs)}));
  class_token = parameter("class_token", {options.hidden}, nn::InitRule::zeros());
  positions = parameter("positions", {options.positions(), options.hidden},
                        nn::InitRule::normal(kVitDeviation));
}

Flow PatchEmbeddingImpl::compute(const Flow& images) {
  const Flow patches = patch->forward(images);  // [rows, hidden, height, width]
  const at::Tensor tokens = patches.x().flatten(2).transpose(1, 2);
  const auto dtype = tokens.scalar_type();
  core::check(tokens.size(1) + 1 == positions.size(0),
              "vit: {} patches of an image [{}, {}], but model.image and model.patch make {}",
              tokens.size(1), images.x().size(2), images.x().size(3), positions.size(0) - 1);
  const at::Tensor first = class_token.to(dtype).expand({tokens.size(0), 1, -1});
  const at::Tensor all = at::cat({first, tokens}, 1) + positions.to(dtype);
  if (region() == nullptr || !region()->cuts_positions()) return patches.with(all);
  return {nn::functional::split(all, 1, region()->group()),
          region()->left(patches, positions.size(0))};
}

Flow ClassTokenImpl::compute(const Flow& in) {
  if (region() == nullptr || !region()->cuts_positions()) return in.with(in.x().select(1, 0));
  const at::Tensor all =
      nn::functional::join(in.x(), 1, region()->group(), region()->positions(in));
  return {all.select(1, 0), region()->entered(in)};
}

VitImpl::VitImpl(const VitOptions& options, const Mesh& mesh) : options_(options) {
  require_uncut(mesh, "vit");
  core::check(options.patch > 0 && options.image % options.patch == 0,
              "vit: model.image = {} is not a multiple of model.patch = {}", options.image,
              options.patch);
  embed = register_module("embed", PatchEmbedding(options));
  drop = register_module("drop", nn::Dropout(options.dropout));
  auto blocks = std::make_shared<torch::nn::Module>("h");
  for (int64_t i = 0; i < options.layers; ++i)
    h.push_back(blocks->register_module(std::to_string(i), GptBlock(gpt_blocks_of(options))));
  register_module("h", blocks);
  pool = register_module("pool", ClassToken());
  ln = register_module(
      "ln", nn::LayerNorm(options.hidden, nn::LayerNormImpl::Options{.epsilon = kVitEpsilon}));
  head = register_module("head", nn::Head(options.hidden, options.classes,
                                          nn::HeadImpl::Options{.deviation = kVitDeviation}));
  nn::cut(*this, kVitPlan, mesh, options.sequence);
  nn::cut(*this, kVitHeadPlan, mesh, nn::Sequence::Whole);  // it sees no positions
}

Flow VitImpl::begin(const Flow& images) {
  return drop->forward(embed->forward(images));
}

Flow VitImpl::chosen(const Flow& in) {
  return ln->forward(pool->forward(in));
}

nn::Chain VitImpl::chain() {
  nn::Chain chain;
  chain.links.push_back({.name = "embed",
                         .layers = {embed.ptr(), drop.ptr()},
                         .run = [this](const Flow& images) { return begin(images); },
                         .counts = false});
  for (std::size_t i = 0; i < h.size(); ++i)
    chain.links.push_back(h[i]->link(fmt::format("h.{}", i)));
  chain.head = {.name = "head", .layers = {pool.ptr(), ln.ptr(), head.ptr()}, .counts = false};
  chain.loss = [this](const Flow& in, const at::Tensor& targets) {
    return nn::classify(*head, chosen(in), targets);
  };
  return chain;
}

std::optional<nn::MicroBatch> VitImpl::example(int64_t rows) const {
  return nn::counting_images({rows, options_.channels, options_.image, options_.image},
                             options_.classes);
}

int64_t VitImpl::activation_bytes(const nn::Batching& of) const {
  return gpt_activation_bytes(gpt_blocks_of(options_), of);
}

Flow VitImpl::compute(const Flow& images) {
  Flow flow = begin(images);
  for (const GptBlock& block : h) flow = block.ptr()->forward(std::move(flow));
  return head->forward(chosen(flow));
}

std::vector<std::shared_ptr<nn::LayerImpl>> VitImpl::blocks() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const GptBlock& block : h) all.push_back(block.ptr());
  return all;
}

std::vector<std::shared_ptr<nn::LayerImpl>> VitImpl::attentions() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const GptBlock& block : h) all.push_back(block->attn.ptr());
  return all;
}

}  // namespace trireme::models
