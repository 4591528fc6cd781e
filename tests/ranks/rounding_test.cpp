// Weights without masters round at random: without bias, and alike on every mesh.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <cmath>
#include <cstdlib>

#include "trireme/nn/parameters.h"
#include "trireme/optim/optimizer.h"

namespace trireme::test {
namespace {

TEST(StochasticRounding, IsUnbiased) {
  // 2^20 roundings of each number. The mean differs from the number by more than 6 standard
  // deviations with a probability of 2e-9 each, and so for any of the six with 1.2e-8.
  constexpr int64_t kSamples = 1 << 20;
  const nn::Parameter parameter{"weight", torch::zeros({kSamples}), Layout({kSamples}), {}};
  const Piece all{.name = "weight",
                  .whole = {kSamples},
                  .offset = {0},
                  .shape = {kSamples},
                  .begin = 0,
                  .count = kSamples};
  for (const float x : {1.001F, 1.0039F, -3.14159F, 1e-20F, 7.77e12F, 1.5F}) {
    const at::Tensor bits = nn::random_bits(parameter, all, static_cast<int64_t>(x * 100));
    const at::Tensor rounded =
        optim::round_at_random(torch::full({kSamples}, x), bits).to(at::kDouble);
    const double least = rounded.min().item<double>(), most = rounded.max().item<double>();
    const double mean = rounded.mean().item<double>();
    EXPECT_LE(least, x);
    EXPECT_GE(most, x);
    const double share = least == most ? 0 : (x - least) / (most - least);
    const double deviation = (most - least) * std::sqrt(share * (1 - share) / kSamples);
    EXPECT_LE(std::abs(mean - x), 6 * deviation + 1e-12 * std::abs(x)) << x;
    if (x == 1.5F) {
      EXPECT_EQ(least, most) << "a number that fits is not rounded";
    }
  }
  const at::Tensor odd = torch::tensor(
      {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 0.0F});
  EXPECT_TRUE(optim::round_at_random(odd, torch::full({3}, -1, torch::kShort))
                  .equal(odd.to(torch::kBFloat16)));
  const at::Tensor nan = torch::full({1}, 0x7fffffff, torch::kInt).view(torch::kFloat);  // CUDA's
  EXPECT_TRUE(
      optim::round_at_random(nan, torch::full({1}, -1, torch::kShort)).isnan().all().item<bool>());
}

TEST(StochasticRounding, HasTheSameBitsOnEveryMesh) {
  // A column cut, a row cut and flat shards: each rank's bits are those of its elements.
  const nn::Parameter parameter{"h.0.weight", torch::zeros({6, 10}), Layout({6, 10}), {}};
  const auto whole = nn::random_bits(parameter, {"", {6, 10}, {0, 0}, {6, 10}, 0, 60}, 5);
  const at::Tensor matrix = whole.view({6, 10});
  const auto box = nn::random_bits(parameter, {"", {6, 10}, {2, 3}, {3, 4}, 0, 12}, 5);
  EXPECT_TRUE(box.view({3, 4}).equal(matrix.narrow(0, 2, 3).narrow(1, 3, 4)));
  const auto shard = nn::random_bits(parameter, {"", {6, 10}, {2, 3}, {3, 4}, 5, 6}, 5);
  EXPECT_TRUE(shard.equal(box.narrow(0, 5, 6)));
  EXPECT_FALSE(whole.equal(nn::random_bits(parameter, {"", {6, 10}, {0, 0}, {6, 10}, 0, 60}, 6)));
}

/// The losses of a line fitted by SGD in bfloat16 without masters, rounded by `bits`.
std::vector<double> fit(at::ScalarType dtype,
                        const std::function<at::Tensor(const at::Tensor&, int64_t)>& bits) {
  at::Tensor weight = torch::ones({64}).to(dtype);
  const at::Tensor wanted = torch::linspace(1.2, 2.8, 64);
  const auto optimizer =
      optim::make_sgd({{"weight", weight, false, [&](int64_t step) { return bits(weight, step); }}},
                      {.momentum = 0});
  std::vector<double> losses;
  for (int step = 0; step < 2000; ++step) {
    const at::Tensor error = weight.to(at::kFloat) - wanted;
    losses.push_back(error.square().mean().item<double>());
    weight.mutable_grad() = error;
    optimizer->step(2e-3);
  }
  return losses;
}

TEST(StochasticRounding, FollowsFloat32WhereNearestStalls) {
  const nn::Parameter parameter{"weight", torch::zeros({64}), Layout({64}), {}};
  const auto random = [&](const at::Tensor&, int64_t step) {
    return nn::random_bits(parameter, {"weight", {64}, {0}, {64}, 0, 64}, step);
  };
  const auto half = [](const at::Tensor& weight, int64_t) {  // always the same: rounds to nearest
    return torch::full_like(weight, -0x8000, torch::kShort);
  };
  const auto exact = fit(at::kFloat, {}), rounded = fit(at::kBFloat16, random),
             nearest = fit(at::kBFloat16, half);
  if (std::getenv("TRIREME_PRINT_CURVES") != nullptr)  // for docs/precision.md
    for (const std::size_t step : {0, 50, 100, 200, 400, 800, 1600})
      fmt::print("| {} | {:.4f} | {:.4f} | {:.4f} |\n", step, exact[step], rounded[step],
                 nearest[step]);
  EXPECT_LT(exact.back(), 1e-3 * exact.front());
  EXPECT_LT(rounded.back(), 1e-3 * rounded.front());
  EXPECT_GT(nearest.back(), 0.5 * nearest.front()) << "updates below half of the last bit are lost";
  for (std::size_t step = 0; step < 600; step += 100)  // later the noise of rounding shows
    EXPECT_NEAR(rounded[step] / exact[step], 1, 0.1) << step;
}

}  // namespace
}  // namespace trireme::test
