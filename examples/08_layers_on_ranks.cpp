// Places the layers of a model that is too large for one rank on several: the first layers on the
// first rank, and so on. One batch runs forward through all stages, and backward again.
//
//   trireme run -n 2 build/bin/08_layers_on_ranks
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;

/// Six torch layers. The chain says in which order they are called; a pipeline needs no more.
class Net : public nn::ModelImpl {
 public:
  Net() {
    for (int i = 0; i < 6; ++i) {
      const int64_t in = i == 0 ? 1 : 32, out = i == 5 ? 1 : 32;
      torch::nn::Sequential layer{torch::nn::Linear(in, out)};
      if (i < 5) layer->push_back(torch::nn::Tanh());
      layers.push_back(register_module("layer" + std::to_string(i), nn::as_layer(layer)));
    }
  }

  nn::Chain chain() override {
    nn::Chain chain;
    for (const auto& layer : layers)
      chain.links.push_back({.name = layer->full_name(), .layers = {layer}});
    chain.head.name = "loss";
    chain.loss = [](const nn::Flow& y, const torch::Tensor& target) {
      return nn::Loss((y.x() - target).pow(2).sum(), target.numel());
    };
    return chain;
  }

 private:
  std::vector<std::shared_ptr<nn::LayerImpl>> layers;
};

int main() {
  return guard([] {
    const auto world = init();
    torch::manual_seed(1);  // the same model on every rank
    const auto model = std::make_shared<Net>();
    const Mesh mesh(world, {.pipe = world.size()});
    parallel::Pipeline stages(*model, mesh,
                              pipeline::make("gpipe", {.ranks = world.size(), .micros = 1}));

    std::vector<torch::Tensor> mine;  // of this rank; the others have no memory here
    for (const parallel::ParameterShard& one : stages.shards()) mine.push_back(one.master);
    torch::optim::Adam optimizer(mine, 1e-2);
    const auto x = torch::linspace(-3, 3, 64).view({64, 1}), y = torch::sin(x);
    double first = 0, last = 0;
    for (int step = 0; step < 200; ++step) {
      stages.run({{x, y}});
      const auto totals = stages.finish();  // sums over all ranks: every rank knows the loss
      optimizer.step();
      stages.updated();
      last = totals.loss / totals.weight;
      if (step == 0) first = last;
    }
    std::cout << "rank " << world.rank() << " of " << world.size() << " has " << mine.size()
              << " of 12 parameters; loss " << first << " -> " << last << std::endl;
    TORCH_CHECK(last < first / 20, "the loss did not fall enough");
  });
}
