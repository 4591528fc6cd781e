// What pipelines are made of, without ranks: backward in two halves, and where a chain is cut.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "trireme/nn/linear.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/weight_queue.h"
#include "trireme/parallel/balance.h"

namespace trireme::test {
namespace {

TEST(SplitBackward, CallsTheHooksOfAWeight) {
  nn::Linear linear(3, 2);
  nn::initialize(*linear, 3);
  const auto queue = std::make_shared<nn::WeightQueue>();
  nn::defer_weights(*linear, queue);
  linear->weight.register_hook([](const at::Tensor& gradient) { return gradient * 0; });
  const auto y = linear->forward(torch::ones({4, 3})).sum();
  for (const auto& job : queue->defer([&] { y.backward(); })) nn::deliver(job);
  EXPECT_EQ(linear->weight.grad().abs().sum().item<float>(), 0);
  EXPECT_EQ(linear->bias.grad().sum().item<float>(), 8);
}

TEST(SplitBackward, GivesTheBitsOfAWholeOne) {
  for (const bool bias : {true, false}) {
    nn::Linear first(5, 7, nn::LinearOptions{.bias = bias}), second(7, 3);
    const auto queue = std::make_shared<nn::WeightQueue>();
    nn::initialize(*first, 3);
    nn::initialize(*second, 3);
    nn::defer_weights(*first, queue);
    nn::defer_weights(*second, queue);
    const auto run = [&](bool split) {
      for (auto& one : {first, second})
        for (auto& parameter : one->parameters()) parameter.mutable_grad() = at::Tensor();
      const auto x = torch::sin(torch::arange(20.)).view({4, 5}).requires_grad_();
      const auto y = second->forward(at::tanh(first->forward(x))).sum();
      if (split) {
        const auto jobs = queue->defer([&] { y.backward(); });
        EXPECT_EQ(jobs.size(), bias ? 4u : 3u);
        EXPECT_FALSE(first->weight.grad().defined());
        EXPECT_TRUE(x.grad().defined());
        for (const nn::WeightJob& job : jobs) nn::deliver(job);
      } else {
        y.backward();
      }
      std::vector<at::Tensor> all = {x.grad().clone()};
      for (const auto& one : {first, second})
        for (const auto& parameter : one->parameters()) all.push_back(parameter.grad().clone());
      return all;
    };
    const auto whole = run(false), halves = run(true);
    ASSERT_EQ(whole.size(), halves.size());
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(whole[i].equal(halves[i])) << i;
  }
}

TEST(Balance, CutsWhereTheDearestStageIsCheapest) {
  using parallel::cut_evenly;
  using Sizes = parallel::StageSizes;
  EXPECT_EQ(cut_evenly({1, 1, 1, 1}, 2), (Sizes{2, 2}));
  EXPECT_EQ(cut_evenly({5, 1, 1, 1, 1, 1}, 2), (Sizes{1, 5}));
  EXPECT_EQ(cut_evenly({1, 2, 3, 4, 5, 6}, 3), (Sizes{3, 2, 1}));
  EXPECT_EQ(cut_evenly({0, 0, 0}, 3), (Sizes{1, 1, 1}));
  // A cut before the third costs too much to move.
  EXPECT_EQ(cut_evenly({2, 2, 2, 2}, 2, {0, 0, 9, 0}), (Sizes{1, 3}));
  // Against all cuts of small chains.
  for (int seed = 0; seed < 200; ++seed) {
    std::vector<double> costs;
    for (int i = 0; i < 6; ++i) costs.push_back((seed * 7 + i * i * 13 + i * seed) % 11);
    double best = 1e9;
    for (int a = 1; a < 5; ++a)
      for (int b = a + 1; b < 6; ++b) {
        double stage[3] = {0, 0, 0};
        for (int i = 0; i < 6; ++i)
          stage[i < a ? 0 : i < b ? 1 : 2] += costs[static_cast<std::size_t>(i)];
        best = std::min(best, *std::max_element(stage, stage + 3));
      }
    std::size_t at = 0;
    double dearest = 0;
    for (const int size : cut_evenly(costs, 3)) {
      double sum = 0;
      for (int i = 0; i < size; ++i) sum += costs[at++];
      dearest = std::max(dearest, sum);
    }
    EXPECT_EQ(dearest, best) << seed;
  }
}
}  // namespace
}  // namespace trireme::test
