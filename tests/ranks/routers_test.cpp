// Each router against the formula of its paper, on cases small enough to do by hand.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "trireme/core/error.h"
#include "trireme/nn/dispatch.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/router.h"

namespace trireme::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kByHand = 1e-12;

/// A router whose logits are its input: the weight is the identity.
nn::Router identity(nn::RouterImpl::Options options) {
  options.width = options.experts;
  nn::Router router(options);
  router->to(torch::kDouble);
  nn::initialize(*router, 1);
  const at::NoGradGuard guard;
  router->weight.copy_(torch::eye(options.experts, torch::kDouble));
  return router;
}

std::vector<int64_t> choices(const nn::Flow& routing) {
  const auto flat = routing.tensors[1].contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

std::vector<double> weights(const nn::Flow& routing) {
  const auto flat = routing.tensors[0].detach().contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

at::Tensor logits(std::vector<double> of, int64_t positions) {
  return torch::log(torch::tensor(of, torch::kDouble)).view({1, positions, -1});
}

MATCHER_P(Near, value, "") {
  return std::abs(arg - value) < kByHand;
}

TEST(Router, TopKOfASoftmaxKeepsTheProbabilities) {  // Shazeer et al. 2017, Fedus et al. 2022
  nn::Router router = identity({.experts = 4, .top_k = 2});
  const nn::Flow out = router->forward(nn::Flow(logits({0.1, 0.4, 0.2, 0.3}, 1)));
  EXPECT_THAT(choices(out), ElementsAre(1, 3));
  EXPECT_THAT(weights(out), ElementsAre(Near(0.4), Near(0.3)));
}

TEST(Router, AnyCapacityAboveTheNumberOfExpertsDropsNothing) {
  for (const double capacity : {4.0, 1e19}) {
    nn::Router router = identity({.experts = 4, .top_k = 1, .capacity = capacity});
    const nn::Flow out = router->forward(
        nn::Flow(logits({0.7, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1, 0.1}, 3)));
    EXPECT_THAT(choices(out), ElementsAre(0, 0, 0));
  }
}

TEST(Router, NormalisedWeightsAddUpToOne) {  // Jiang et al. 2024 (Mixtral)
  nn::Router router = identity({.experts = 4, .top_k = 2, .normalised = true});
  const nn::Flow out = router->forward(nn::Flow(logits({0.1, 0.4, 0.2, 0.3}, 1)));
  EXPECT_THAT(weights(out), ElementsAre(Near(4.0 / 7), Near(3.0 / 7)));
}

TEST(Router, AGroupIsChosenByItsBestExpert) {  // DeepSeek-V2: groups {0, 1}, {2, 3}, {4, 5}
  nn::Router router = identity({.experts = 6, .top_k = 2, .groups = 3, .top_groups = 1});
  const nn::Flow out = router->forward(nn::Flow(logits({0.30, 0.02, 0.25, 0.20, 0.13, 0.10}, 1)));
  EXPECT_THAT(choices(out), ElementsAre(0, 1)) << "although 2 and 3 have higher scores than 1";
  EXPECT_THAT(weights(out), ElementsAre(Near(0.30), Near(0.02)));
}

TEST(Router, ABiasMovesTheChoiceAndNotTheWeight) {  // Wang et al. 2024, DeepSeek-V3
  nn::Router router = identity({.experts = 3,
                                .top_k = 2,
                                .score = nn::RouterImpl::Score::Sigmoid,
                                .normalised = true,
                                .scale = 2.5,
                                .biased = true});
  // Sigmoids 0.5, 0.4, 0.2: with the biases 0.5, 0.4, 0.45.
  const auto odds = [](double p) { return p / (1 - p); };
  router->bias.copy_(torch::tensor({0.0, 0.0, 0.25}));
  const nn::Flow out = router->forward(nn::Flow(logits({odds(0.5), odds(0.4), odds(0.2)}, 1)));
  EXPECT_THAT(choices(out), ElementsAre(0, 2));
  EXPECT_THAT(weights(out), ElementsAre(Near(2.5 * 0.5 / 0.7), Near(2.5 * 0.2 / 0.7)));
}

TEST(Router, WithBiasesAGroupIsChosenByItsTwoBest) {  // DeepSeek-V3
  nn::Router router = identity({.experts = 4,
                                .top_k = 1,
                                .score = nn::RouterImpl::Score::Sigmoid,
                                .groups = 2,
                                .top_groups = 1,
                                .biased = true});
  const auto odds = [](double p) { return p / (1 - p); };
  const nn::Flow out =
      router->forward(nn::Flow(logits({odds(0.6), odds(0.1), odds(0.5), odds(0.4)}, 1)));
  EXPECT_THAT(choices(out), ElementsAre(2)) << "0.6 + 0.1 is less than 0.5 + 0.4";
}

nn::Flow in_step(const at::Tensor& x, std::vector<double> row_weights = {}) {
  nn::Where where;
  where.step = 1;
  for (int64_t row = 0; row < x.size(0); ++row) where.sample_ids.push_back(row);
  where.row_weights = std::move(row_weights);
  return {x, std::make_shared<const nn::Where>(where)};
}

TEST(Router, BiasesMoveOnceAStepAgainstTheLoad) {
  nn::Router router = identity({.experts = 3,
                                .top_k = 1,
                                .score = nn::RouterImpl::Score::Sigmoid,
                                .biased = true,
                                .bias_rate = 0.01});
  router->forward(in_step(logits({9, 1, 1, 9, 1, 1}, 2)));  // two micro-batches of one step
  router->forward(in_step(logits({1, 9, 1}, 1)));
  router->end_step(router->take_sums());  // loads 2, 1, 0, whose mean is 1
  EXPECT_TRUE(torch::allclose(router->bias, torch::tensor({-0.01, 0.0, 0.01}).to(torch::kDouble)));
  EXPECT_THAT(router->load()->tokens, ElementsAre(2, 1, 0));
  router->eval();
  router->forward(in_step(logits({9, 1, 1}, 1)));
  EXPECT_EQ(router->take_sums().sum().item<double>(), 0) << "evaluation does not count";
}

TEST(Router, TheBalanceLossIsThatOfEachSequenceWithItsWeight) {  // E sum_e f_e P_e
  nn::Router router = identity({.experts = 2, .top_k = 1, .balance = 0.5});
  const auto x = torch::cat({logits({0.8, 0.2, 0.6, 0.4}, 2), logits({0.3, 0.7, 0.9, 0.1}, 2)});
  router->forward(in_step(x, {2, 1}));
  router->end_step(router->take_sums());
  // Sequence 0: f = (1, 0), P = (0.7, 0.3): 1.4. Sequence 1: f = (1/2, 1/2): 1.
  EXPECT_NEAR(router->load()->balance, (2 * 1.4 + 1 * 1.0) / 3, kByHand);
}

TEST(Router, ItsLossesReachTheWeightsOnce) {
  nn::Router router = identity({.experts = 3, .top_k = 2, .balance = 0.5, .z_loss = 0.1});
  torch::manual_seed(2);
  const auto x = torch::randn({2, 4, 3}, torch::kDouble).requires_grad_();
  router->forward(in_step(x, {4, 3})).tensors[0].sum().backward();
  const auto got = x.grad().clone();
  // The same by hand.
  const auto y = x.detach().clone().requires_grad_();
  const auto p = torch::softmax(y, -1);
  const auto best = std::get<1>(p.detach().topk(2, -1));
  const auto f = torch::zeros({2, 3}, torch::kDouble)
                     .scatter_add(1, best.flatten(1), torch::ones({2, 8}, torch::kDouble)) /
                 8;
  const auto w = torch::tensor({4.0, 3.0}, torch::kDouble);
  const auto balance = (3 * (f * p.mean(1)).sum(1) * w).sum();
  const auto z = (y.logsumexp(-1).square().mean(1) * w).sum();
  (p.gather(-1, best).sum() + 0.5 * balance + 0.1 * z).backward();
  EXPECT_LE((got - y.grad()).abs().max().item<double>(), kByHand);
}

TEST(Router, LossesAreScaledAsTheModelsIs) {
  nn::Router router = identity({.experts = 2, .top_k = 1, .balance = 1});
  const auto gradient = [&](const at::Tensor& scale) {
    auto x = logits({0.8, 0.2, 0.6, 0.4}, 2).requires_grad_();
    nn::Where where;
    where.loss_scale = scale;
    const nn::Flow out = router->forward(nn::Flow(x, std::make_shared<const nn::Where>(where)));
    (out.tensors[0] * 0).sum().backward();
    return x.grad();
  };
  const auto once = gradient({});
  EXPECT_GT(once.abs().max().item<double>(), 0);
  EXPECT_TRUE(torch::equal(gradient(torch::tensor(8.0)), once * 8));
}

TEST(Router, EarlierPositionsWinWhereAnExpertIsFull) {
  // Capacity 1 x 3 positions x 2 choices / 3 experts = 2 tokens of each sequence.
  nn::Router router = identity({.experts = 3, .top_k = 2, .capacity = 1});
  const auto x = logits({5, 4, 1, 5, 4, 1, 5, 1, 4}, 3);
  const nn::Flow out = router->forward(in_step(torch::cat({x, x})));
  const int64_t none = nn::kDropped;
  EXPECT_THAT(choices(out), ElementsAre(0, 1, 0, 1, none, 2, 0, 1, 0, 1, none, 2));
  router->end_step(router->take_sums());
  EXPECT_EQ(router->load()->dropped, 2);
  router->eval();
  EXPECT_THAT(choices(router->forward(in_step(x))), ElementsAre(0, 1, 0, 1, 0, 2));
}

TEST(Router, RefusesWhatCannotBe) {
  using Options = nn::RouterImpl::Options;
  const std::pair<Options, const char*> cases[] = {
      {{.width = 2, .experts = 4, .top_k = 5}, "top_k 5 is more than 4 experts"},
      {{.width = 2, .experts = 4, .groups = 3}, "4 experts cannot be divided into 3 groups"},
      {{.width = 2, .experts = 4, .top_k = 3, .groups = 2},
       "top_k 3 of 4 experts does not fit the best 1 of 2 groups"}};
  for (const auto& [options, says] : cases) {
    const auto made = [wanted = options] { nn::Router router(wanted); };
    EXPECT_THAT(made, ThrowsMessage<MisuseError>(HasSubstr(says)));
  }
  nn::Router router = identity({.experts = 4, .top_k = 1, .capacity = 0.5});
  EXPECT_THAT(
      [&] {
        router->forward(in_step(torch::ones({1, 4, 4}, torch::kDouble)));
      },
      ThrowsMessage<MisuseError>(HasSubstr("capacity 0.5 would drop everything")));
}

}  // namespace
}  // namespace trireme::test
