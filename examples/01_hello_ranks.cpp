// Every rank says hello, and all ranks add up their numbers.
//
//   trireme run -n 4 build/bin/01_hello_ranks
#include <unistd.h>

#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

int main() {
  return trireme::guard([] {
    const auto world = trireme::init();

    auto sum = torch::full({1}, world.rank() + 1.0);
    world.all_reduce(sum).wait();

    // One call of <<, so that the lines of different ranks do not mix.
    std::cout << "hello from rank " + std::to_string(world.rank()) + " of " +
                     std::to_string(world.size()) + ", pid " + std::to_string(::getpid()) +
                     "; 1 + ... + " + std::to_string(world.size()) + " = " +
                     std::to_string(static_cast<int>(sum.item<float>())) + "\n"
              << std::flush;
    world.barrier();
  });
}
