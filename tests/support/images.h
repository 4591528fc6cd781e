// Small images to tell apart, and models that do.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "models/registry.h"
#include "models/resnet.h"
#include "support/backends.h"
#include "trireme/data/dataset.h"
#include "trireme/verify/verify.h"

namespace trireme::test {

constexpr int64_t kImageClasses = 4, kImageSize = 8, kImageChannels = 3;

/// Stripes: the class is their direction and period; where they begin and their colour differ.
struct Stripes : data::Dataset {
  explicit Stripes(int64_t images = 60, int64_t from = 0) : count(images), first(from) {}
  int64_t size() const override { return count; }
  data::Sample get(int64_t i) const override {
    const int64_t number = i + first, label = number % kImageClasses;
    const auto along = torch::arange(kImageSize, torch::kFloat);
    const auto line =
        torch::sin(along * (label < 2 ? 0.8 : 1.9) + 0.7 * static_cast<double>(number));
    const auto grey = label % 2 == 0 ? line.view({-1, 1}).expand({kImageSize, kImageSize})
                                     : line.view({1, -1}).expand({kImageSize, kImageSize});
    const auto colour = torch::cos(torch::arange(kImageChannels, torch::kFloat) +
                                   0.3 * static_cast<double>(number));
    return {(grey.unsqueeze(0) * (1 + 0.2 * colour.view({-1, 1, 1}))).contiguous(),
            torch::tensor(label, torch::kLong)};
  }
  int64_t count, first;
};

/// "resnet" or "vit" on Stripes. A batch of 6 is one micro-batch.
inline config::Config image_config(const std::string& kind) {
  config::Config config;
  config.run.device = config::Device::Cpu;
  config.model.kind = kind;
  config.model.layers = 2;
  config.model.hidden = 16;
  config.model.heads = config.model.kv_heads = 4;
  config.model.ffn = 24;
  config.model.classes = kImageClasses;
  config.model.image = kImageSize;
  config.model.channels = kImageChannels;
  config.model.patch = 4;
  config.data.kind = config::DataKind::Cifar;
  config.batch.global = config.batch.micro = 6;
  config.optim.lr = 0.01;
  config.pipeline.balance.by = config::Balance::By::Parameters;
  return config;
}

/// Makes the model that the configuration names; a resnet has an eighth of the channels.
inline std::shared_ptr<nn::ModelImpl> make_images(const config::Config& config, const Mesh& mesh) {
  if (config.model.kind != "resnet") return models::make_model(config, mesh);
  return std::make_shared<models::ResNetImpl>(
      models::ResNetOptions{.classes = kImageClasses,
                            .image = kImageSize,
                            .width = 8,
                            .all_ranks = config.model.batch_norm == config::BatchNormKind::Sync},
      mesh);
}

/// Proves it.
inline verify::Report prove_images(const comm::Communicator& world, const config::Config& config,
                                   const Degrees& degrees, const verify::Options& options = {}) {
  at::set_num_threads(1);
  return verify::verify({config, [&](const Mesh& mesh) { return make_images(config, mesh); },
                         std::make_shared<Stripes>()},
                        world, degrees, options);
}

}  // namespace trireme::test
