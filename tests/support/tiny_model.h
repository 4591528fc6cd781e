#pragma once

#include <torch/torch.h>

#include <memory>

#include "models/registry.h"
#include "support/backends.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/head.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/plan.h"
#include "trireme/verify/verify.h"

namespace trireme::test {

using nn::Flow;
using nn::Sequence;
using nn::Style;

constexpr int64_t kVocab = 12, kWidth = 8, kWide = 16, kPositions = 4;

/// The layers of a small language model; a test replaces the one that it breaks.
struct Layers {
  std::shared_ptr<nn::EmbeddingImpl> table = std::make_shared<nn::EmbeddingImpl>(kVocab, kWidth);
  std::shared_ptr<nn::DropoutImpl> drop = std::make_shared<nn::DropoutImpl>(0.2);
  std::shared_ptr<nn::LayerNormImpl> norm = std::make_shared<nn::LayerNormImpl>(kWidth);
  std::shared_ptr<nn::LinearImpl> up = std::make_shared<nn::LinearImpl>(kWidth, kWide);
  std::shared_ptr<nn::LinearImpl> down = std::make_shared<nn::LinearImpl>(kWide, kWidth);
  Style vocabulary = Style::Vocabulary;
  bool tie = false;
};

struct TinyImpl : nn::ModelImpl {
  TinyImpl(Layers with, const Mesh& mesh, Sequence sequence) : layers(std::move(with)) {
    register_module("table", layers.table);
    register_module("drop", layers.drop);
    register_module("norm", layers.norm);
    register_module("up", layers.up);
    register_module("down", layers.down);
    head = register_module(
        "head",
        nn::Head(kWidth, kVocab,
                 nn::HeadImpl::Options{.tied = layers.tie ? layers.table->weight : at::Tensor()}));
    nn::cut(*this,
            {{"table", layers.vocabulary},
             {"drop", Style::Positions},
             {"norm", Style::Positions},
             {"up", Style::Column},
             {"down", Style::Row},
             {"head", layers.vocabulary}},
            mesh, sequence);
  }
  nn::Loss loss(const Flow& tokens, const at::Tensor& targets) override {
    const Flow x = layers.norm->forward(layers.drop->forward(layers.table->forward(tokens)));
    const Flow wide = layers.up->forward(x);
    return head->loss(layers.down->forward(wide.with(torch::gelu(wide.x()))), targets);
  }
  Layers layers;
  nn::Head head{nullptr};
};

struct Texts : data::Dataset {
  int64_t size() const override { return 64; }
  data::Sample get(int64_t i) const override {
    const auto all = (torch::arange(kPositions + 1, torch::kLong) * (2 * i + 1) + i) % kVocab;
    return {all.narrow(0, 0, kPositions).clone(), all.narrow(0, 1, kPositions).clone()};
  }
};

inline config::Config small_config() {
  config::Config config;
  config.run.device = config::Device::Cpu;  // ranks that are threads cannot share layers on a GPU
  config.batch.global = 6;
  config.batch.micro = 2;
  config.optim.lr = 0.01;
  return config;
}

/// A gpt that trains on `Texts`.
inline config::Config tiny_gpt_config() {
  config::Config config = small_config();
  config.model.layers = 2;
  config.model.hidden = 16;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.seq = kPositions;
  config.model.vocab = kVocab;
  config.pipeline.balance.by = config::Balance::By::Parameters;
  return config;
}

/// Proves the model that the configuration names.
inline verify::Report prove_model(const comm::Communicator& world, const config::Config& config,
                                  const Degrees& degrees, const verify::Options& options = {}) {
  at::set_num_threads(1);
  return verify::verify({config, [&](const Mesh& mesh) { return models::make_model(config, mesh); },
                         std::make_shared<Texts>()},
                        world, degrees, options);
}

using Change = std::function<void(Layers&, const Mesh&)>;

struct Setting {
  Degrees degrees;
  Sequence sequence = Sequence::Cut;
  Change change = [](Layers&, const Mesh&) {};
};

inline verify::Report prove(const comm::Communicator& world, const Setting& setting) {
  return verify::verify({.config = small_config(),
                         .model =
                             [&](const Mesh& mesh) {
                               Layers layers;
                               setting.change(layers, mesh);
                               return std::make_shared<TinyImpl>(layers, mesh, setting.sequence);
                             },
                         .data = std::make_shared<Texts>()},
                        world, setting.degrees);
}

/// The same of a model of one's own, which is told its mesh.
template <class Model>
verify::Report prove_own(const comm::Communicator& world, const Degrees& degrees) {
  return verify::verify({.config = small_config(),
                         .model = [](const Mesh& mesh) { return std::make_shared<Model>(mesh); },
                         .data = std::make_shared<Texts>()},
                        world, degrees);
}

}  // namespace trireme::test
