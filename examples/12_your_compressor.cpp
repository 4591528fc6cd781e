// A compressor of your own: one class with two functions. This one sends each number in three bytes
// instead of four. What its bytes do not say is added to the next gradient, saved with checkpoints
// and resumed, without a line here.
//
//   trireme run -n 2 build/bin/12_your_compressor
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;

/// The upper three bytes of a float: sign, exponent and 15 bits of the fraction.
class ThreeBytes : public compress::Compressor {
 public:
  std::string_view name() const override { return "three bytes"; }

  torch::Tensor encode(const torch::Tensor& block, const compress::BlockPlace&) const override {
    const auto all = block.to(torch::kFloat).contiguous().view(torch::kByte).view({-1, 4});
    return all.narrow(1, 1, 3).reshape({-1});  // the lowest byte is the first
  }

  void decode(const torch::Tensor& bytes, const torch::Tensor& block) const override {
    auto all = torch::zeros({block.numel(), 4}, torch::kByte);
    all.narrow(1, 1, 3).copy_(bytes.view({-1, 3}));
    block.copy_(all.view({-1}).view(torch::kFloat));
  }
};

double last_loss(const comm::Communicator& world, const parallel::CompressOptions& compress) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  parallel::DataParallel replicas(*model, world, {.compress = compress});
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  double loss = 0;
  for (int step = 0; step < 100; ++step) {
    const auto x = torch::sin(torch::arange(128.).view({16, 8}) * (step + 1) + world.rank());
    const auto error = model->forward(x) - x.sum(1, /*keepdim=*/true);
    replicas.backward({error.pow(2).sum(), torch::tensor(16.)});
    const auto totals = replicas.finish();
    optimizer.step();
    loss = totals.loss / totals.weight;
  }
  replicas.check_same();
  return loss;
}

int main() {
  return guard([] {
    const comm::Communicator world = init();
    const double plain = last_loss(world, {});
    const double ours = last_loss(world, {.own = std::make_shared<ThreeBytes>()});
    const double ready_made = last_loss(world, {.kind = parallel::Compression::TopK, .ratio = 0.1});
    if (world.rank() == 0)
      std::cout << "the last loss: " << plain << "; in three bytes a number: " << ours
                << "; the largest tenth: " << ready_made << "\n";
    return std::abs(ours - plain) < 1e-3 * plain ? 0 : 1;
  });
}
