#include "models/mlp.h"

#include "models/uncut.h"
#include "trireme/core/error.h"
#include "trireme/nn/plan.h"

namespace trireme::models {

using nn::Flow;

namespace {

/// Linear, GELU, dropout.
class MlpLayerImpl : public nn::LayerImpl {
 public:
  MlpLayerImpl(int64_t in, int64_t out, double dropout)
      : linear(register_module("linear", nn::Linear(in, out))),
        drop(register_module("drop", nn::Dropout(dropout, out))) {}
  Output output() const override { return drop->output(); }

 protected:
  Flow compute(const Flow& in) override {
    const Flow wide = linear->forward(in);
    return drop->forward(wide.with(at::gelu(wide.x())));
  }

 private:
  nn::Linear linear;
  nn::Dropout drop;
};

/// Layers are cut by column and by row in turn: after a column the features are cut, after a row
/// they are whole again.
nn::Plan plan_of(int64_t layers) {
  nn::Plan plan = {{"embed", nn::Style::Vocabulary}, {"head", nn::Style::Vocabulary}};
  for (int64_t i = 0; i < layers; ++i) {
    const bool last = i + 1 == layers && i % 2 == 0;  // the head wants its features whole
    const nn::Style style = i % 2 == 1 ? nn::Style::Row
                            : last     ? nn::Style::Whole
                                       : nn::Style::Column;
    plan.emplace_back(fmt::format("layers.{}.linear", i), style);
    plan.emplace_back(fmt::format("layers.{}.drop", i),
                      style == nn::Style::Column ? nn::Style::Column : nn::Style::Whole);
  }
  return plan;
}

}  // namespace

MlpImpl::MlpImpl(MlpOptions options, const Mesh& mesh) : options_(options) {
  require_uncut(mesh, "mlp");
  embed = register_module("embed", nn::Embedding(options.vocab, options.hidden, 0.1));
  layers_ = std::make_shared<nn::SequentialImpl>();
  for (int64_t i = 0; i < options.layers; ++i)
    layers_->push_back(std::make_shared<MlpLayerImpl>(
        i == 0 ? options.seq * options.hidden : options.hidden, options.hidden, options.dropout));
  register_module("layers", layers_);
  head = register_module(
      "head", nn::Head(options.layers > 0 ? options.hidden : options.seq * options.hidden,
                       options.vocab, nn::HeadImpl::Options{}));
  nn::cut(*this, plan_of(options.layers), mesh);
}

Flow MlpImpl::embed_and_concatenate(const Flow& tokens) {
  core::check(tokens.x().size(1) == options_.seq, "mlp: {} tokens, but model.seq is {}",
              tokens.x().size(1), options_.seq);
  const Flow embedded = embed->forward(tokens);
  return embedded.with(embedded.x().flatten(1));
}

nn::Chain MlpImpl::chain() {
  nn::Chain chain;
  chain.links.push_back(
      {.name = "embed",
       .layers = {embed.ptr()},
       .run = [this](const Flow& tokens) { return embed_and_concatenate(tokens); },
       .counts = false});
  for (const auto& layer : layers_->layers())
    chain.links.push_back(
        {.name = fmt::format("layers.{}", chain.links.size() - 1), .layers = {layer}});
  chain.head = {.name = "head", .layers = {head.ptr()}, .counts = false};
  chain.loss = [this](const Flow& in, const at::Tensor& targets) {
    return head->loss(in, targets.select(1, options_.seq - 1));
  };
  return chain;
}

std::optional<nn::MicroBatch> MlpImpl::example(int64_t rows) const {
  return nn::counting_tokens(rows, options_.seq, options_.vocab);
}

Flow MlpImpl::compute(const Flow& tokens) {
  return head->forward(layers_->forward(embed_and_concatenate(tokens)));
}

int64_t MlpImpl::activation_bytes(const nn::Batching& of) const {
  const int64_t width = options_.seq * options_.hidden;  // the embeddings of a sample
  const int64_t layer = 2 * options_.hidden + (options_.dropout > 0 ? options_.hidden : 0);
  const bool again = of.recompute == nn::Batching::Recompute::Block;
  const double layers = of.layers < 0 ? static_cast<double>(options_.layers) : of.layers;
  const auto kept =
      width + static_cast<int64_t>(layers * static_cast<double>(again ? options_.hidden : layer));
  const int64_t classes = (options_.vocab + of.tensor - 1) / of.tensor;
  const int64_t first = width * options_.hidden;  // the gradient of the first, largest matrix
  const int64_t in_head = classes * options_.hidden + of.rows * (classes + 2 * options_.hidden);
  const int64_t in_layer = first + of.rows * (width + 2 * options_.hidden);
  const int64_t bytes =
      (of.rows * (kept + (again ? layer : 0)) + std::max(in_head, in_layer)) * of.item_bytes;
  if (of.item_bytes >= 4) return bytes;
  // In 16 bits a gradient is also in float32: while it is added on the CPU, and that of the table.
  const bool adds = of.device == c10::DeviceType::CPU && of.accumulates;
  return std::max(bytes + (adds ? 4 * first : 0), classes * options_.hidden * (4 + of.item_bytes));
}

}  // namespace trireme::models
