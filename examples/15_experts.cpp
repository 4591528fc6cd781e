// A mixture of experts in a model of your own: a plan names the layer whose experts are dealt to
// the ranks. The model itself never calls a collective and does not know how many ranks there are.
//
//   trireme run -n 2 build/bin/15_experts
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;
using nn::Flow;
using nn::Style;

/// x + experts(norm(x)): a router chooses two of eight experts for every token.
class Block : public nn::LayerImpl {
 public:
  explicit Block(int64_t width)
      : norm(register_module("norm", nn::LayerNorm(width))),
        router(register_module("router",
                               nn::Router(nn::RouterImpl::Options{
                                   .width = width, .experts = 8, .top_k = 2, .balance = 0.01}))),
        experts(register_module("experts", nn::Experts(nn::ExpertsImpl::Options{
                                               .width = width, .ffn = 64, .experts = 8}))) {}

 protected:
  Flow compute(const Flow& in) override {
    const Flow x = norm->forward(in);
    const Flow routing = router->forward(x);  // {weights, choice}
    const Flow y = experts->forward({{x.x(), routing.tensors[0], routing.tensors[1]}, in.where});
    return in.with(in.x() + y.x());
  }

 private:
  nn::LayerNorm norm;
  nn::Router router;
  nn::Experts experts;
};

nn::Sequential make_model(const Mesh& mesh) {
  nn::Sequential model(std::vector<std::shared_ptr<nn::LayerImpl>>{std::make_shared<Block>(32),
                                                                   std::make_shared<Block>(32)});
  nn::cut(*model, {{"*.router", Style::Positions}, {"*.experts", Style::Expert}}, mesh);
  model->to(torch::kDouble);
  nn::initialize(*model, /*seed=*/7);  // every rank computes its part of the same weights
  return model;
}

/// Trains for a few steps towards an arbitrary target and returns the losses. Each rank has some of
/// the rows, and the tokens of its rows travel to the ranks of their experts.
std::vector<double> losses_on(const Mesh& mesh) {
  auto model = make_model(mesh);
  parallel::DataParallel replicas(*model, mesh);
  torch::optim::SGD optimizer(model->parameters(), 0.2);
  const auto all = torch::linspace(-1, 1, 6 * 4 * 32, torch::kDouble).view({6, 4, 32}).sin();
  const auto samples = mesh.samples();
  const Range mine = even_range(all.size(0), samples.size(), samples.rank());
  const auto x = all.narrow(0, mine.begin, mine.count);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    const auto sum = (model->forward(x) - torch::cos(5 * x)).pow(2).sum();
    replicas.backward({sum, x.numel()});
    const auto totals = replicas.finish();
    losses.push_back(totals.loss / totals.weight);
    optimizer.step();
  }
  return losses;
}

int main() {
  return guard([] {
    const auto world = init();
    const Mesh dealt(world, {.replica = world.size(), .expert = world.size()});
    const auto losses = losses_on(dealt), expected = losses_on(mesh_of_one());
    double difference = 0;
    for (std::size_t i = 0; i < losses.size(); ++i)
      difference = std::max(difference, std::abs(losses[i] - expected[i]) / expected[i]);
    if (world.rank() == 0)
      std::cout << "experts on " << world.size() << " ranks: loss " << losses.front() << " -> "
                << losses.back() << "; one rank alone differs by "
                << (difference < 1e-10 ? "less than 1e-10" : "more than 1e-10") << std::endl;
    return difference < 1e-10 && losses.back() < losses.front() ? 0 : 1;
  });
}
