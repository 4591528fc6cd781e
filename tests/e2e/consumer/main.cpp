#include <trireme/trireme.h>

#include <ATen/ops/full.h>

#include <iostream>

int main() {
  const auto world = trireme::init();
  auto sum = at::full({1}, world.rank() + 1);
  world.all_reduce(sum).wait();
  std::cout << "sum " << sum.item<int64_t>() << "\n";
}
