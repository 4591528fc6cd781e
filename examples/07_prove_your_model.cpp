// Proves that your own model trains on a mesh as it does on one rank: compares the output of every
// layer, every gradient and every weight, in float64. With the argument "wrong" a layer has a
// mistake, which the proof finds.
//
//   trireme run -n 2 build/bin/07_prove_your_model
//   trireme run -n 2 build/bin/07_prove_your_model wrong
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;
using nn::Flow;
using nn::Style;

constexpr int64_t kWidth = 8, kWide = 16, kClasses = 5;

/// A common mistake: every rank adds the bias before the sum over the ranks, instead of once after.
class EagerBias : public nn::LinearImpl {
 public:
  using LinearImpl::LinearImpl;

 protected:
  Flow compute(const Flow& in) override {
    return region()->leave(in.with(nn::linear(in.x(), weight, bias)));
  }
};

/// A model that can be proved: it has Trireme's layers, a plan, and a loss with a sum and a weight.
class Net : public nn::ModelImpl {
 public:
  Net(const Mesh& mesh, std::shared_ptr<nn::LinearImpl> last) : down(std::move(last)) {
    register_module("up", up);
    register_module("down", down);
    register_module("head", head);
    nn::cut(*this, {{"up", Style::Column}, {"down", Style::Row}, {"head", Style::Vocabulary}},
            mesh);
  }
  nn::Loss loss(const Flow& x, const at::Tensor& targets) override {
    const Flow wide = up->forward(x);
    return head->loss(down->forward(wide.with(torch::gelu(wide.x()))), targets);
  }

 private:
  nn::Linear up{kWidth, kWide};
  std::shared_ptr<nn::LinearImpl> down;
  nn::Head head{kWidth, kClasses, nn::HeadImpl::Options{}};
};

class Samples : public data::Dataset {
 public:
  int64_t size() const override { return 100; }
  data::Sample get(int64_t index) const override {
    const auto x = torch::sin(torch::arange(kWidth, torch::kDouble) * static_cast<double>(index));
    return {x, torch::tensor(index % kClasses)};
  }
};

int main(int argc, char** argv) {
  return guard([&] {
    const auto world = init();
    const bool wrong = argc > 1 && std::string(argv[1]) == "wrong";
    config::Config config;  // only batch, optim and run.seed matter here
    config.batch.global = 12;
    config.run.device = config::Device::Cpu;
    const auto make_model = [&](const Mesh& mesh) {
      auto down = wrong ? std::make_shared<EagerBias>(kWide, kWidth)
                        : std::make_shared<nn::LinearImpl>(kWide, kWidth);
      return std::make_shared<Net>(mesh, std::move(down));
    };
    const auto report = verify::verify({config, make_model, std::make_shared<Samples>()}, world,
                                       {.tensor = world.size()});
    if (world.rank() == 0) std::cout << report.text() << std::flush;
    return report.same() ? 0 : 3;
  });
}
