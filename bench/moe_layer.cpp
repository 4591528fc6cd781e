// A mixture of experts on one rank, forward and backward. bench/experts runs it beside PyTorch.
//
//     moe_layer [TOKENS HIDDEN EXPERTS FFN TOP_K STEPS]
//
// For every line on stdin it runs the steps and prints one JSON object: {"bench":"moe_layer",
// "step_ms":141.2,"sum":...}. `sum` is that of the outputs: the peer starts from the same weights.
#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "trireme/mesh/guard.h"
#include "trireme/nn/moe.h"
#include "trireme/nn/parameters.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

/// Values that both programs can make: sin(7 i) for the elements of a tensor, times `scale`.
at::Tensor waves(at::IntArrayRef shape, double scale) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return (at::arange(numel, at::kDouble).mul(7).sin().mul(scale)).to(at::kFloat).view(shape);
}

int run(const std::vector<int64_t>& sizes) {
  const int64_t tokens = sizes[0], hidden = sizes[1], experts = sizes[2], ffn = sizes[3];
  at::set_num_threads(1);
  nn::Moe moe(nn::MoeImpl::Options{
      .router = {.width = hidden, .experts = experts, .top_k = sizes[4]}, .experts = {.ffn = ffn}});
  nn::initialize(*moe, 1);
  {
    const at::NoGradGuard guard;
    moe->router->weight.copy_(waves({experts, hidden}, 0.5));
    moe->experts->up.copy_(waves({experts, ffn, hidden}, 0.1));
    moe->experts->down.copy_(waves({experts, hidden, ffn}, 0.1));
  }
  moe->eval();
  at::Tensor x = waves({1, tokens, hidden}, 1).requires_grad_();
  double sum = 0;
  const auto step = [&] {
    moe->zero_grad();
    x.mutable_grad() = at::Tensor();
    const at::Tensor y = moe->forward(x);
    y.square().sum().backward();
    sum = y.detach().to(at::kDouble).sum().item<double>();
  };
  step();
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> times;
    for (int64_t i = 0; i < sizes[5]; ++i) {
      const auto begin = Clock::now();
      step();
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    std::ranges::sort(times);
    fmt::print("{{\"bench\":\"moe_layer\",\"step_ms\":{:.3f},\"sum\":{}}}\n",
               times[times.size() / 2], sum);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::guard([&] {
    std::vector<int64_t> sizes = {4096, 256, 8, 512, 2, 5};
    for (int i = 1; i < argc && i <= 6; ++i)
      sizes[static_cast<std::size_t>(i - 1)] = std::stoll(argv[i]);
    return run(sizes);
  });
}
