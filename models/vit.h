#pragma once

#include "models/gpt.h"
#include "trireme/nn/conv.h"

namespace trireme::models {

struct VitOptions {
  int64_t layers = 4, hidden = 128, heads = 4;
  int64_t kv_heads = 0;  ///< 0: heads
  int64_t ffn = 0;       ///< 0: 4 x hidden
  int64_t classes = 10, image = 32, channels = 3, patch = 4;
  double dropout = 0, attention_dropout = 0;
  nn::Sequence sequence = nn::Sequence::Cut;  ///< between the layers that the tensor axis cuts

  int64_t positions() const { return image / patch * (image / patch) + 1; }
};

/// An image as positions: the class token, then its patches, row by row; each plus what belongs to
/// its place. If the tensor axis cuts positions, a rank returns its part.
class PatchEmbeddingImpl : public nn::LayerImpl {
 public:
  explicit PatchEmbeddingImpl(const VitOptions& options);

 protected:
  nn::Flow compute(const nn::Flow& images) override;

 private:
  nn::Conv2d patch{nullptr};
  at::Tensor class_token, positions;
};
TORCH_MODULE(PatchEmbedding);

/// The class token of all positions, [rows, hidden], on every rank that shares them.
class ClassTokenImpl : public nn::LayerImpl {
 protected:
  nn::Flow compute(const nn::Flow& in) override;
};
TORCH_MODULE(ClassToken);

/// ViT (Dosovitskiy et al. 2021) in torchvision's form: the blocks of GPT, but every position sees
/// all others, GELU is exact, and epsilon is 1e-6. The norm after the blocks and the head see the
/// class token only.
class VitImpl : public nn::ModelImpl {
 public:
  /// The tensor axis cuts the heads, the width of the mlp, and the classes.
  VitImpl(const VitOptions& options, const Mesh& mesh);

  nn::Chain chain() override;
  std::optional<nn::MicroBatch> example(int64_t rows) const override;
  int64_t activation_bytes(const nn::Batching& of) const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> blocks() const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> attentions() const override;

 protected:
  /// Logits [rows, classes].
  nn::Flow compute(const nn::Flow& images) override;

 private:
  nn::Flow begin(const nn::Flow& images);
  nn::Flow chosen(const nn::Flow& in);

  VitOptions options_;
  PatchEmbedding embed{nullptr};
  nn::Dropout drop{nullptr};
  std::vector<GptBlock> h;
  ClassToken pool{nullptr};
  nn::LayerNorm ln{nullptr};
  nn::Head head{nullptr};
};
TORCH_MODULE(Vit);

}  // namespace trireme::models
