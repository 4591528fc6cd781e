// Averages gradients by hand, as data parallelism does. Every rank has its own gradient. Its memory
// comes from `allocate`, so the ranks reduce in place, directly in each other's memory. The
// reduction runs while the rank computes something else.
//
//   trireme run -n 2 build/bin/02_all_reduce
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;

int main() {
  return guard([] {
    const auto world = init();

    // The gradient of (x - rank)^2 at x = 1, for a million x.
    auto gradient = world.allocate({1'000'000}, torch::kFloat32);
    gradient.fill_(2.0 * (1.0 - world.rank()));

    auto work = world.all_reduce(gradient, comm::ReduceOp::Mean);
    const auto meanwhile = torch::randn({64, 64}).matmul(torch::randn({64, 64})).sum();
    work.wait();

    // The mean of 2 (1 - r) over r = 0 .. n-1 is 2 - (n - 1).
    const double expected = 2.0 - (world.size() - 1);
    const bool right = (gradient == expected).all().item<bool>();
    if (world.rank() == 0)
      std::cout << "the average gradient is " << gradient[0].item<float>() << ", expected "
                << expected << "\n";
    return right && meanwhile.isfinite().item<bool>() ? 0 : 1;
  });
}
