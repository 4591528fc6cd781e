// Accumulates gradients over uneven batches: the micro-batches of each rank have another size, some
// labels are masked, and one rank has more rows than the others. You never divide by the number of
// steps or ranks, because a loss is a sum and its weight.
//
//   trireme run -n 3 build/bin/04_accumulation
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;
using parallel::Micro;

constexpr int64_t kRows = 23, kFeatures = 5, kClasses = 3;

/// The same data on every rank, so that one process can check the result of all ranks.
std::pair<torch::Tensor, torch::Tensor> whole_batch() {
  torch::manual_seed(7);
  auto labels = torch::randint(0, kClasses, {kRows}, torch::kLong);
  labels.slice(0, 3, 8).fill_(nn::kIgnored);
  return {torch::randn({kRows, kFeatures}, torch::kDouble), labels};
}

int main() {
  return guard([] {
    const auto world = init();
    torch::manual_seed(1);
    torch::nn::Linear model(kFeatures, kClasses);
    model->to(torch::kDouble);
    parallel::DataParallel replicas(*model, world);

    // Rank r of n takes rows [r, r + 1) x 20 / n; the last three rows go to rank 0 alone.
    const auto [x, y] = whole_batch();
    const auto mine = even_range(20, world.size(), world.rank());
    const int64_t micro = 1 + world.rank();  // rows of a micro-batch: different on every rank
    for (int64_t at = mine.begin; at < mine.begin + mine.count; at += micro) {
      const int64_t end = std::min(at + micro, mine.begin + mine.count);
      replicas.backward(nn::cross_entropy(model(x.slice(0, at, end)), y.slice(0, at, end)),
                        Micro::More);
    }
    if (world.rank() == 0)
      replicas.backward(nn::cross_entropy(model(x.slice(0, 20)), y.slice(0, 20)));
    const auto totals = replicas.finish();

    torch::nn::Linear alone(kFeatures, kClasses);
    alone->to(torch::kDouble);
    {
      const torch::NoGradGuard guard;
      alone->weight.copy_(model->weight);
      alone->bias.copy_(model->bias);
    }
    const auto loss = nn::cross_entropy(alone(x), y);
    (loss.sum / loss.weight).backward();
    const double off = (model->weight.grad() - alone->weight.grad()).abs().max().item<double>();
    if (world.rank() == 0)
      std::cout << totals.weight << " labels counted on " << world.size()
                << " ranks; the gradient differs from one process's by " << off << std::endl;
    return off < 1e-12 && totals.weight == 18 ? 0 : 1;
  });
}
