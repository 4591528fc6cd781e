#pragma once

#include "trireme/mesh/mesh.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/head.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/model.h"

namespace trireme::models {

struct MlpOptions {
  int64_t layers = 2, hidden = 128, seq = 8, vocab = 256;
  double dropout = 0;
};

/// The language model of Bengio et al. 2003: the embeddings of `seq` tokens are concatenated, pass
/// through hidden layers with GELU, and predict the next token. One prediction per sample.
class MlpImpl : public nn::ModelImpl {
 public:
  MlpImpl(MlpOptions options, const Mesh& mesh);
  nn::Chain chain() override;
  std::optional<nn::MicroBatch> example(int64_t rows) const override;
  int64_t activation_bytes(const nn::Batching& of) const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> blocks() const override { return layers_->layers(); }

 protected:
  nn::Flow compute(const nn::Flow& tokens) override;

 private:
  nn::Flow embed_and_concatenate(const nn::Flow& tokens);

  MlpOptions options_;
  nn::Embedding embed{nullptr};
  std::shared_ptr<nn::SequentialImpl> layers_;
  nn::Head head{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace trireme::models
