// A model of your own whose weights live on servers: workers pull them and push gradients; servers
// make the updates. Any process may be killed meanwhile. With "lockstep" a step is that of one
// process on the whole batch; "stale" lets a worker be two steps ahead, "free" as far as it likes.
//
//   trireme run --servers 2 --workers 3 build/bin/13_parameter_server stale
//   build/bin/13_parameter_server                            all of it in one process
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

namespace ps = trireme::ps;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(2, 32))),
        out(register_module("out", torch::nn::Linear(32, 1))) {}
  torch::Tensor forward(torch::Tensor x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

/// Points and the products of their coordinates: the same for a batch, whoever does it.
std::pair<torch::Tensor, torch::Tensor> make_batch(uint64_t batch) {
  torch::manual_seed(100 + batch);
  const auto x = torch::rand({16, 2}) * 2 - 1;
  return {x, (x.select(1, 0) * x.select(1, 1)).unsqueeze(1)};
}

int main(int argc, char** argv) {
  return trireme::guard([&] {
    const std::string kind = argc > 1 ? argv[1] : "lockstep";
    torch::manual_seed(1);  // the same first weights in every process
    Net model;
    ps::TableConfig table = ps::module_table(*model, ps::make_adamw({.lr = 1e-2}));  // 1: what
    table.consistency = kind == "free"    ? ps::Consistency::Free
                        : kind == "stale" ? ps::Consistency::Stale
                                          : ps::Consistency::Lockstep;
    table.tau = kind == "stale" ? 2 : 0;
    ps::JobConfig job{.data = {.batches_per_epoch = 1200}, .tables = {table}};
    const auto worker = ps::join(job);  // 2: serves, in the processes of manager and servers
    if (!worker) return 0;
    ps::ServerParallel replica(*model, worker->client());  // 3: attach
    const auto& end = worker->train([&](ps::TrainingStep& step) {
      replica.begin(step);  // the weights of this step
      const auto [x, y] = make_batch(step.batch());
      replica.backward({(model(x) - y).pow(2).sum(), x.size(0)});
      const auto totals = replica.finish();  // 4: push the gradient
      if (step.batch() % 200 == 0)
        std::cout << "batch " << step.batch() << "  loss " << totals.loss / totals.weight
                  << std::endl;
    });
    replica.read(end);  // all updates
    const auto [x, y] = make_batch(1'000'000);
    const double loss = (model(x) - y).pow(2).mean().item<double>();
    std::cout << "all updates made, loss " << loss << std::endl;
    return loss < 0.02 ? 0 : 1;
  });
}
