// The seam around a layer, and recomputation on it.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <set>

#include "models/gpt.h"
#include "support/tiny.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/recompute.h"

namespace trireme::test {
namespace {

using nn::Flow;
using nn::Where;

/// One tensor in, one out, and how often it was computed.
struct CountedImpl : nn::LayerImpl {
  at::Tensor compute(const at::Tensor& x, const Where*) override {
    ++computed;
    return torch::sin(x);
  }
  using LayerImpl::compute;
  int computed = 0;
};

TEST(Seam, RunsHooksFromTheOutsideInWhateverTheOrderOfAttaching) {
  CountedImpl layer;
  std::string heard;
  const auto hear = [&](std::string name) {
    return [&heard, name](Flow in, const nn::LayerImpl::Call& inner) {
      heard += name + "(";
      Flow out = inner(std::move(in));
      heard += ")";
      return out;
    };
  };
  layer.around(nn::Seam::Unshard, hear("unshard"));
  layer.around(nn::Seam::Profile, hear("profile"));
  layer.around(nn::Seam::Recompute, hear("recompute"));
  layer.forward(torch::ones({2}));
  EXPECT_EQ(heard, "profile(recompute(unshard()))");
}

TEST(Seam, TakesAnyTorchModule) {
  torch::nn::Linear linear(3, 2);
  const auto layer = nn::as_layer(linear);
  EXPECT_TRUE(layer->forward(torch::ones({1, 3})).equal(linear(torch::ones({1, 3}))));
  EXPECT_TRUE(layer->named_parameters().contains("module.weight"));
}

struct SeamOutcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
};

SeamOutcome run(models::Gpt& model, const Flow& tokens, const at::Tensor& targets) {
  model->zero_grad();
  const nn::Loss loss = model->loss(tokens, targets);
  loss.sum.backward();
  SeamOutcome result{loss.sum.detach(), {}};
  for (const auto& p : nn::parameters_of(*model))
    result.gradients.push_back(p.tensor.grad().clone());
  return result;
}

TEST(Recompute, GivesTheSameBitsWithDropoutAndNested) {
  const models::GptOptions options{.layers = 3,
                                   .hidden = 16,
                                   .heads = 2,
                                   .seq = 8,
                                   .vocab = 32,
                                   .dropout = 0.2,
                                   .attention_dropout = 0.1};
  const auto tokens = torch::randint(0, 32, {2, 8}, torch::kLong);
  const Flow flow(tokens, where({5, 9}));
  const Mesh mesh = mesh_of_one();
  models::Gpt plain(options, mesh), blocks(options, mesh), nested(options, mesh);
  for (auto* model : {&plain, &blocks, &nested}) nn::initialize(**model, 3);
  for (const auto& block : blocks->blocks()) nn::recompute(*block);
  for (const auto& block : nested->blocks()) nn::recompute(*block);
  for (const auto& attention : nested->attentions()) nn::recompute(*attention);
  const SeamOutcome expected = run(plain, flow, tokens);
  for (auto* model : {&blocks, &nested}) {
    const SeamOutcome got = run(*model, flow, tokens);
    EXPECT_TRUE(got.loss.equal(expected.loss));
    for (std::size_t i = 0; i < expected.gradients.size(); ++i)
      EXPECT_TRUE(got.gradients[i].equal(expected.gradients[i])) << i;
  }
}

TEST(Recompute, ComputesTwiceOnlyWhereAGradientIsWanted) {
  CountedImpl layer;
  nn::recompute(layer);
  layer.forward(torch::ones({2}, torch::requires_grad())).sum().backward();
  EXPECT_EQ(layer.computed, 2);
  const torch::NoGradGuard guard;
  layer.forward(torch::ones({2}));
  EXPECT_EQ(layer.computed, 3);
}

}  // namespace
}  // namespace trireme::test
