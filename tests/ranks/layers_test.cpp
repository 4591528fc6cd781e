// Layers and losses against torch, and the rule that chance depends on logical coordinates only.
#include "trireme/nn/layers.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <set>

#include "support/tiny.h"
#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/loss.h"
#include "trireme/nn/matmul.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

using nn::Flow;

TEST(Dropout, DependsOnStepAndSampleAndNotOnTheCutOfTheBatch) {
  nn::Sequential model(std::vector<std::shared_ptr<nn::LayerImpl>>{
      std::make_shared<nn::DropoutImpl>(0.4), std::make_shared<nn::DropoutImpl>(0.4)});
  nn::initialize(*model, 5);
  const auto x = torch::ones({4, 6, 5});
  const auto whole = model->forward(Flow(x, where({10, 11, 12, 13}))).x();
  const auto part = model->forward(Flow(x.narrow(0, 2, 2), where({12, 13}))).x();
  EXPECT_TRUE(part.equal(whole.narrow(0, 2, 2)));
  const auto tail = model->forward(Flow(x.narrow(1, 4, 2), where({10, 11, 12, 13}, 3, 4))).x();
  EXPECT_TRUE(tail.equal(whole.narrow(1, 4, 2))) << "a part of the sequence";
  EXPECT_FALSE(model->forward(Flow(x, where({10, 11, 12, 13}, 4))).x().equal(whole));
  EXPECT_FALSE(whole[0].equal(whole[1]));
}

TEST(Dropout, DropsAsOftenAsAskedAndKeepsTheMean) {
  nn::Dropout layer(0.25);
  nn::initialize(*layer, 1);
  const auto y =
      layer->forward(Flow(torch::ones({8, 100, 100}), where({0, 1, 2, 3, 4, 5, 6, 7}))).x();
  EXPECT_NEAR((y == 0).to(torch::kDouble).mean().item<double>(), 0.25, 0.005);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.01);
  layer->eval();
  EXPECT_TRUE(layer->forward(torch::ones({3})).equal(torch::ones({3})));
}

TEST(Dropout, WithoutKnowingItsSamplesIsAnError) {
  nn::Dropout layer(0.5);
  nn::initialize(*layer, 1);
  EXPECT_THROW(layer->forward(torch::ones({2, 3})), MisuseError);
  EXPECT_THROW(layer->forward(Flow(torch::ones({2, 3}), where({1}))), MisuseError);
}

TEST(Gelu, IsTorchsInValueAndGradient) {
  const auto x = torch::cat({torch::linspace(-20, 20, 4001), torch::tensor({-1e4f, 1e4f, 0.0f})})
                     .requires_grad_();
  const auto y = nn::gelu_tanh(x);
  y.sum().backward();
  const auto exact = x.detach().to(torch::kDouble).requires_grad_();
  const auto expected = torch::gelu(exact, "tanh");
  expected.sum().backward();
  EXPECT_LE((y - expected).abs().div(1 + expected.abs()).max().item<double>(), 3e-7);
  // Float32 loses digits where the slope's terms cancel, torch's own too: no worse than twice that.
  const auto plain = x.detach().clone().requires_grad_();
  torch::gelu(plain, "tanh").sum().backward();
  const double torchs = (plain.grad() - exact.grad()).abs().max().item<double>();
  EXPECT_LE((x.grad() - exact.grad()).abs().max().item<double>(), 2 * torchs);
  EXPECT_TRUE(nn::gelu_tanh(torch::tensor({std::nanf("")})).isnan().item<bool>());
  EXPECT_EQ(nn::gelu_tanh(torch::empty({0, 3})).numel(), 0);
}

TEST(Linear, IsTorchsInValueAndGradient) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    torch::manual_seed(1);
    const auto options = torch::TensorOptions(dtype).requires_grad(true);
    const auto x = torch::randn({3, 17, 9}, options), w = torch::randn({21, 9}, options),
               b = torch::randn({21}, options);
    const auto weights = torch::randn({3, 17, 21}, dtype);
    (nn::linear(x, w, b) * weights).sum().backward();
    const std::vector<at::Tensor> ours = {x.grad().clone(), w.grad().clone(), b.grad().clone()};
    for (const auto& tensor : {x, w, b}) tensor.mutable_grad().zero_();
    (torch::linear(x, w, b) * weights).sum().backward();
    const std::vector<at::Tensor> theirs = {x.grad(), w.grad(), b.grad()};
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-5, 1e-5)) << i << " " << dtype;
    EXPECT_TRUE(torch::allclose(nn::linear(x, w, {}), torch::linear(x, w), 1e-5, 1e-5));
    EXPECT_TRUE(torch::allclose(nn::product(w, x.flatten(0, 1)), torch::mm(w, x.flatten(0, 1).t()),
                                1e-5, 1e-5));
    EXPECT_EQ(nn::linear(x.narrow(0, 0, 0), w, b).sizes(), (std::vector<int64_t>{0, 17, 21}));
    w.mutable_grad() = at::Tensor();
    (nn::linear(x, w, {}) * weights).sum().backward();
    EXPECT_TRUE(torch::allclose(w.grad(), theirs[1], 1e-5, 1e-5)) << "without a bias";
  }
}

TEST(LinearCrossEntropy, EqualsTheTwoOperationsInValueAndGradient) {
  for (const int64_t rows : {0, 1, 37, 700}) {
    torch::manual_seed(rows);
    const auto x = torch::randn({rows, 5}, torch::kDouble).requires_grad_();
    const auto w = torch::randn({3000, 5}, torch::kDouble).requires_grad_();
    auto targets = torch::randint(0, 3000, {rows}, torch::kLong);
    if (rows > 3) targets.narrow(0, 1, 2).fill_(nn::kIgnored);
    const auto fused = nn::linear_cross_entropy(x, w, targets);
    (fused.sum * 0.5).backward();
    const auto dx = x.grad().clone(), dw = w.grad().clone();
    x.mutable_grad().zero_();
    w.mutable_grad().zero_();
    const auto plain = nn::cross_entropy(torch::matmul(x, w.t()), targets);
    (plain.sum * 0.5).backward();
    EXPECT_NEAR(fused.sum.item<double>(), plain.sum.item<double>(), 1e-10 * (1 + rows));
    EXPECT_EQ(fused.weight.item<double>(), plain.weight.item<double>());
    EXPECT_TRUE(torch::allclose(dx, x.grad(), 1e-11, 1e-13));
    EXPECT_TRUE(torch::allclose(dw, w.grad(), 1e-11, 1e-13));
  }
}

TEST(LinearCrossEntropy, SurvivesChancesThatUnderflow) {
  const auto x = torch::tensor({{200.0f}}), w = torch::tensor({{1.0f}, {0.0f}});
  EXPECT_FLOAT_EQ(nn::linear_cross_entropy(x, w, torch::tensor({1})).sum.item<float>(), 200);
}

TEST(LinearCrossEntropy, NamesATargetThatIsNoClass) {
  const auto x = torch::ones({1, 2}), w = torch::ones({3, 2});
  for (const int64_t bad : {3, -1}) {
    EXPECT_THROW(nn::linear_cross_entropy(x, w, torch::tensor({bad})), Error);
    EXPECT_THROW(nn::cross_entropy(torch::ones({1, 3}), torch::tensor({bad})), Error);
  }
}

}  // namespace
}  // namespace trireme::test
