#include "models/mlp.h"

#include "models/uncut.h"
#include "trireme/core/error.h"

namespace trireme::models {

using nn::Flow;

namespace {

/// Linear, GELU, dropout.
class MlpLayerImpl : public nn::LayerImpl {
 public:
  MlpLayerImpl(int64_t in, int64_t out, double dropout)
      : linear(register_module("linear", nn::Linear(in, out))),
        drop(register_module("drop", nn::Dropout(dropout))) {}

 protected:
  Flow compute(const Flow& in) override {
    const Flow wide = linear->forward(in);
    return drop->forward(wide.with(at::gelu(wide.x())));
  }

 private:
  nn::Linear linear;
  nn::Dropout drop;
};

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
      "head", nn::Linear(options.layers > 0 ? options.hidden : options.seq * options.hidden,
                         options.vocab));
}

Flow MlpImpl::compute(const Flow& tokens) {
  core::check(tokens.x().size(1) == options_.seq, "mlp: {} tokens, but model.seq is {}",
              tokens.x().size(1), options_.seq);
  const at::Tensor side_by_side = embed->forward(tokens.x()).flatten(1);
  return head->forward(layers_->forward(tokens.with(side_by_side)));
}

nn::Loss MlpImpl::loss(const Flow& tokens, const at::Tensor& targets) {
  return nn::cross_entropy(forward(tokens).x(), targets.select(1, options_.seq - 1));
}

}  // namespace trireme::models
