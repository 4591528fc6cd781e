// A model of your own, data-parallel: three lines more than on one process. Every rank takes its
// rows of a batch of 48; the gradient is that of one process on all of them together, so the losses
// are the same on any number of ranks, but for rounding.
//
//   trireme run -n 2 build/bin/03_your_model
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(2, 32))),
        out(register_module("out", torch::nn::Linear(32, 1))) {}
  torch::Tensor forward(torch::Tensor x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

/// Points of the plane, and the product of their coordinates.
std::pair<torch::Tensor, torch::Tensor> make_batch(int64_t rows) {
  const auto x = torch::rand({rows, 2}) * 2 - 1;
  return {x, (x.select(1, 0) * x.select(1, 1)).unsqueeze(1)};
}

int main() {
  return trireme::guard([] {
    const auto world = trireme::init();  // 1: join the job
    torch::manual_seed(1);               // the same batches on every rank
    Net model;
    trireme::parallel::DataParallel replicas(*model, world);  // 2: attach

    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    double loss = 0;
    for (int step = 1; step <= 300; ++step) {
      const auto [all_x, all_y] = make_batch(48);
      const auto x = all_x.tensor_split(world.size())[world.rank()];
      const auto y = all_y.tensor_split(world.size())[world.rank()];
      const auto errors = (model(x) - y).pow(2);
      replicas.backward({errors.sum(), x.size(0)});
      const auto totals = replicas.finish();  // 3: sum over all ranks
      optimizer.step();
      loss = totals.loss / totals.weight;
      if (world.rank() == 0 && step % 100 == 0)
        std::cout << "step " << step << "  loss " << loss << std::endl;
    }
    replicas.check_same();  // throws unless the replicas are equal, bit for bit
    return loss < 0.01 ? 0 : 1;
  });
}
