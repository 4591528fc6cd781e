// The seam around a layer, and recomputation on it.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "models/gpt.h"
#include "support/tiny.h"
#include "trireme/nn/bind.h"
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

TEST(Seam, TellsHooksWhetherBackwardReadsTheWeights) {
  nn::Embedding embedding(5, 3);
  nn::Head head(3, 5, nn::HeadImpl::Options{});
  nn::initialize(*embedding, /*seed=*/1);
  nn::initialize(*head, /*seed=*/1);
  std::string heard;
  const auto listen = [&](nn::LayerImpl& layer, nn::Seam kind, const std::string& name) {
    layer.around(kind, [&heard, name](Flow in, const nn::LayerImpl::Call& inner) {
      heard += name + (inner.backward_reads_weights ? ":reads " : ":does not ");
      return inner(std::move(in));
    });
  };
  for (const auto kind : {nn::Seam::Unshard, nn::Seam::Profile}) {
    const std::string name = kind == nn::Seam::Unshard ? "unshard" : "profile";
    listen(*embedding, kind, "embedding " + name);
    listen(*head, kind, "head " + name);
  }
  const auto tokens = torch::arange(4);
  const auto heard_by = [&](const std::function<void()>& call) {
    call();
    return std::exchange(heard, {});
  };
  at::Tensor x;
  EXPECT_EQ(heard_by([&] { x = embedding->forward(tokens); }),
            "embedding profile:does not embedding unshard:does not ");
  EXPECT_EQ(heard_by([&] { embedding->rows({{0, 2}}); }), "embedding unshard:does not ");
  EXPECT_EQ(heard_by([&] { head->forward(x); }), "head profile:reads head unshard:reads ");
  EXPECT_EQ(heard_by([&] { head->loss(x, tokens); }), "head unshard:does not ");
  EXPECT_EQ(heard_by([&] { head->forward(x); }), "head profile:reads head unshard:reads ");
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

TEST(Recompute, LeavesAloneWhatNeedsNoGradient) {
  CountedImpl layer;
  nn::recompute(layer);
  const auto y = layer.forward(torch::ones({2}));
  EXPECT_FALSE(y.requires_grad()) << "a frozen prefix is not computed again, nor sent gradients";
  EXPECT_EQ(layer.computed, 1);
  nn::Linear frozen(2, 2), trained(2, 2);
  for (const at::Tensor& one : frozen->parameters()) one.requires_grad_(false);
  nn::initialize(*frozen, 1);
  nn::initialize(*trained, 1);
  nn::recompute(*frozen);
  nn::recompute(*trained);
  EXPECT_FALSE(frozen->forward(torch::ones({1, 2})).requires_grad());
  EXPECT_TRUE(trained->forward(torch::ones({1, 2})).requires_grad()) << "for its weights";
}

/// Subtracts a running mean, and then counts its input in.
struct RunningImpl : nn::LayerImpl {
  RunningImpl() {
    mean = register_buffer("mean", torch::zeros({3}));
    seen = register_buffer("seen", torch::zeros({}, torch::kLong));
  }
  at::Tensor compute(const at::Tensor& x, const Where*) override {
    const auto y = torch::sin(x - mean.clone());
    const torch::NoGradGuard guard;
    mean.mul_(0.5).add_(x.detach().mean(0), 0.5);
    seen += 1;
    return y;
  }
  using LayerImpl::compute;
  at::Tensor mean, seen;
};

TEST(Recompute, CountsABatchOnceAndSeesTheBuffersOfTheFirstTime) {
  RunningImpl plain, again;
  nn::recompute(again);
  torch::nn::BatchNorm1d norm(3), norm_again(3);
  const auto layer = nn::as_layer(norm), layer_again = nn::as_layer(norm_again);
  nn::recompute(*layer_again);
  for (int step = 1; step < 4; ++step) {
    const auto x = torch::sin(torch::arange(12.) * step).view({4, 3});
    const auto a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
    // Two micro-batches are under way when the first one's backward comes.
    const auto one = layer->forward(plain.forward(a)), two = layer->forward(plain.forward(a * 2));
    const auto one_again = layer_again->forward(again.forward(b)),
               two_again = layer_again->forward(again.forward(b * 2));
    one.pow(3).sum().backward();
    two.pow(3).sum().backward();
    one_again.pow(3).sum().backward();
    two_again.pow(3).sum().backward();
    EXPECT_TRUE(b.grad().equal(a.grad())) << step;
  }
  EXPECT_TRUE(again.mean.equal(plain.mean));
  EXPECT_EQ(again.seen.item<int64_t>(), 6);
  EXPECT_TRUE(norm_again->running_mean.equal(norm->running_mean));
  EXPECT_TRUE(norm_again->running_var.equal(norm->running_var));
  EXPECT_EQ(norm_again->num_batches_tracked.item<int64_t>(), 6);
}

TEST(Seam, AWeightWithoutMemoryIsAnErrorWhateverTheLibtorch) {
  const auto refused = [](const auto& body) {
    try {
      body();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  const nn::Deferred deferred;
  nn::Linear layer(3, 2);
  nn::name_layers(*layer);
  EXPECT_THAT(refused([&] {
                layer->forward(torch::ones({1, 3}));
              }),
              ::testing::HasSubstr("nn::Deferred"));
  EXPECT_THAT(refused([&] { nn::check_bound(layer->weight, "w"); }),
              ::testing::HasSubstr("no memory"));
}

}  // namespace
}  // namespace trireme::test
