#pragma once

#include "trireme/mesh/mesh.h"
#include "trireme/nn/batch_norm.h"
#include "trireme/nn/conv.h"
#include "trireme/nn/head.h"
#include "trireme/nn/model.h"

namespace trireme::models {

struct ResNetOptions {
  int64_t depth = 18;  ///< 18 or 50
  int64_t classes = 10, image = 32, channels = 3;
  int64_t width = 64;  ///< channels of the first blocks; it doubles three times
  enum class Stem : uint8_t { Cifar, ImageNet } stem = Stem::Cifar;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  bool all_ranks = true;  ///< batch norm takes its statistics over all ranks
};

/// One convolution and the batch norm after it: its channels, and the pixels of its output.
struct ConvSize {
  int64_t in = 1, out = 1, kernel = 3, stride = 1;
};

/// What is added to the stream of a ResNet:
///
///   x ──conv, bn, relu──conv, bn──(+)──relu──>        depth 18: 3x3 and 3x3
///   └──────(conv, bn)───────────────┘                 depth 50: 1x1, 3x3 and 1x1
///
/// The way below has a convolution where the number of channels or of pixels changes.
class ResidualBlockImpl : public nn::LayerImpl {
 public:
  ResidualBlockImpl(const std::vector<ConvSize>& convs, const ResNetOptions& options);

 protected:
  nn::Flow compute(const nn::Flow& in) override;

 private:
  std::vector<nn::Conv2d> convs_;
  std::vector<nn::BatchNorm> norms_;
  std::shared_ptr<nn::SequentialImpl> downsample_;  // null: x itself is added
};
TORCH_MODULE(ResidualBlock);

/// ResNet (He et al. 2016), in torchvision's form: stride in the 3x3 convolutions, initial weights
/// normal with deviation sqrt(2 / (kernel^2 out)). Parameters and buffers have torchvision's names.
class ResNetImpl : public nn::ModelImpl {
 public:
  /// Throws ConfigError for another depth, and if the mesh has an axis that cannot cut images.
  ResNetImpl(const ResNetOptions& options, const Mesh& mesh);

  nn::Chain chain() override;
  std::optional<nn::MicroBatch> example(int64_t rows) const override;
  int64_t activation_bytes(const nn::Batching& of) const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> blocks() const override;

 protected:
  /// Logits [rows, classes].
  nn::Flow compute(const nn::Flow& images) override;

 private:
  nn::Flow begin(const nn::Flow& images);
  nn::Flow pooled(const nn::Flow& in);

  ResNetOptions options_;
  nn::Conv2d conv1{nullptr};
  nn::BatchNorm bn1{nullptr};
  nn::MaxPool2d maxpool{nullptr};
  std::vector<std::pair<std::string, ResidualBlock>> blocks_;  // with their names
  nn::GlobalAveragePool avgpool{nullptr};
  nn::Head fc{nullptr};
};
TORCH_MODULE(ResNet);

/// The convolutions of each block, in order.
std::vector<std::vector<ConvSize>> resnet_blocks(const ResNetOptions& options);

}  // namespace trireme::models
