// A mixture of experts against a loop over tokens and their experts, gradients included, in
// float64.
#include <gmock/gmock.h>
#include <malloc.h>

#include <torch/torch.h>

#include "support/backends.h"
#include "support/on_gpu.h"
#include "trireme/core/error.h"
#include "trireme/nn/moe.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kSameLayer = 1e-10;  // sums of a few dozen terms in another order

nn::MoeImpl::Options options_of(bool gated, int64_t experts, int64_t top_k) {
  return {.router = {.width = 6, .experts = experts, .top_k = top_k, .deviation = 0.7},
          .experts = {.ffn = 10, .gated = gated, .in_deviation = 0.5, .out_deviation = 0.5}};
}

nn::Moe made(const nn::MoeImpl::Options& options) {
  nn::Moe moe(options);
  moe->to(torch::kDouble);
  nn::initialize(*moe, 5);
  return moe;
}

/// One token after the other, one expert after the other.
at::Tensor looped(const nn::MoeImpl& moe, const at::Tensor& x) {
  const auto& router = moe.router->options();
  const auto& experts = moe.experts->options();
  const at::Tensor flat = x.reshape({-1, x.size(-1)});
  std::vector<at::Tensor> rows;
  for (int64_t token = 0; token < flat.size(0); ++token) {
    const at::Tensor probabilities =
        torch::softmax(moe.router->weight.matmul(flat[token]), /*dim=*/0);
    const auto [best, which] = probabilities.topk(router.top_k);
    at::Tensor y = torch::zeros_like(flat[token]);
    for (int64_t k = 0; k < router.top_k; ++k) {
      const auto e = which[k].item<int64_t>();
      at::Tensor wide = moe.experts->up[e].matmul(flat[token]);
      wide = experts.gated ? torch::silu(wide.narrow(0, 0, experts.ffn)) *
                                 wide.narrow(0, experts.ffn, experts.ffn)
                           : at::gelu(wide, "tanh");
      y = y + best[k] * moe.experts->down[e].matmul(wide);
    }
    rows.push_back(y);
  }
  return torch::stack(rows).view(x.sizes());
}

std::vector<at::Tensor> gradients(const nn::MoeImpl& moe, const at::Tensor& y, const at::Tensor& x,
                                  const at::Tensor& by) {
  return torch::autograd::grad({(y * by).sum()},
                               {x, moe.router->weight, moe.experts->up, moe.experts->down});
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

TEST(MoeLayer, IsALoopOverTokensAndTheirExperts) {
  for (const bool gated : {false, true}) {
    for (const auto& [experts, top_k] : {std::pair<int64_t, int64_t>{4, 2}, {5, 1}, {3, 3}}) {
      nn::Moe moe = made(options_of(gated, experts, top_k));
      moe->eval();
      torch::manual_seed(3);
      const auto x = torch::randn({3, 7, 6}, torch::kDouble).requires_grad_();
      const auto by = torch::randn({3, 7, 6}, torch::kDouble);
      const auto y = moe->forward(x), expected = looped(*moe, x);
      EXPECT_LE(distance(y, expected), kSameLayer);
      const auto got = gradients(*moe, y, x, by), wanted = gradients(*moe, expected, x, by);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(distance(got[i], wanted[i]), kSameLayer) << "gradient " << i;
    }
  }
}

TEST(MoeLayer, HasASecondDerivative) {
  nn::Moe moe = made(options_of(true, 3, 2));
  moe->eval();
  torch::manual_seed(4);
  const auto x = torch::randn({2, 3, 6}, torch::kDouble).requires_grad_();
  const auto twice = [&](const at::Tensor& y) {
    const auto first = torch::autograd::grad({y.square().sum()}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.square().sum()}, {x, moe->experts->down});
  };
  const auto got = twice(moe->forward(x)), wanted = twice(looped(*moe, x));
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(distance(got[i], wanted[i]), 1e-8 * wanted[i].abs().max().item<double>());
}

/// The layer over ranks of the expert axis, which hold different rows of the same batch: rank r has
/// `rows[r]` of them. `overlaps`: tokens travel in two halves.
void check_dealt(const std::vector<int64_t>& rows, bool all_to_one, bool overlaps) {
  const auto ranks = static_cast<int>(rows.size());
  const int64_t experts = 4;
  nn::Moe whole = made(options_of(true, experts, 1));
  whole->eval();
  torch::manual_seed(6);
  int64_t all_rows = 0;
  for (const int64_t count : rows) all_rows += count;
  auto x = torch::randn({all_rows, 3, 6}, torch::kDouble);
  const auto by = torch::randn({all_rows, 3, 6}, torch::kDouble);
  const auto steer = [&](nn::MoeImpl& moe) {
    if (!all_to_one) return;
    const at::NoGradGuard guard;
    moe.router->weight.zero_();
    moe.router->weight[2].fill_(9);
  };
  if (all_to_one) x = x.abs();  // then expert 2 has the highest score everywhere
  steer(*whole);
  x.requires_grad_();
  const auto expected = looped(*whole, x);
  const auto wanted = gradients(*whole, expected, x, by);
  run_world(kThreads, ranks, [&](const Communicator& world) {
    const Mesh mesh(world, {.replica = ranks, .expert = ranks});
    struct Root : torch::nn::Module {
      nn::Moe moe = nullptr;
    } root;
    nn::MoeImpl::Options dealt = options_of(true, experts, 1);
    dealt.experts.overlaps = overlaps;
    root.moe = root.register_module("moe", nn::Moe(dealt));
    nn::cut(root, nn::moe_plan("moe", options_of(true, experts, 1)), mesh);
    root.to(torch::kDouble);
    root.eval();
    {
      const at::NoGradGuard guard;
      root.moe->router->weight.copy_(whole->router->weight);
      const Range mine = even_range(experts, ranks, world.rank());
      root.moe->experts->up.copy_(whole->experts->up.narrow(0, mine.begin, mine.count));
      root.moe->experts->down.copy_(whole->experts->down.narrow(0, mine.begin, mine.count));
    }
    int64_t begin = 0;
    for (int r = 0; r < world.rank(); ++r) begin += rows[static_cast<std::size_t>(r)];
    const int64_t count = rows[static_cast<std::size_t>(world.rank())];
    const auto own = x.detach().narrow(0, begin, count).clone().requires_grad_();
    const auto y = root.moe->forward(own);
    EXPECT_LE(distance(y, expected.detach().narrow(0, begin, count)), kSameLayer);
    auto got = gradients(*root.moe, y, own, by.narrow(0, begin, count));
    EXPECT_LE(distance(got[0], wanted[0].narrow(0, begin, count)), kSameLayer);
    world.all_reduce(got[1]).wait();
    EXPECT_LE(distance(got[1], wanted[1]), kSameLayer);
    const Range mine = even_range(experts, ranks, world.rank());
    for (const std::size_t i : {2, 3})
      EXPECT_LE(distance(got[i], wanted[i].narrow(0, mine.begin, mine.count)), kSameLayer)
          << "an expert's gradient has the tokens of all ranks";
  });
}

TEST(MoeLayer, TokensTravelToTheRanksOfTheirExperts) {
  for (const bool overlaps : {false, true}) {
    check_dealt({2, 2}, false, overlaps);
    check_dealt({1, 2, 3, 1}, false, overlaps);
  }
}

TEST(MoeLayer, RanksWithoutTokensAndExpertsWithoutTokensAreFine) {
  for (const bool overlaps : {false, true}) {
    check_dealt({3, 0}, false, overlaps);
    check_dealt({0, 2, 0, 1}, false, overlaps);
    check_dealt({2, 1}, true, overlaps);
    check_dealt({0, 0, 1, 0}, true, overlaps);
  }
}

/// In 16 bits all experts are multiplied by one kernel; in float64 one after the other.
TEST(MoeLayer, OnAGpuIsTheSameToItsPrecision) {
  NEEDS_GPU();
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    nn::MoeImpl::Options options = options_of(true, 5, 2);
    options.router.width = 64;
    options.experts.ffn = 48;
    nn::Moe exact = made(options), there = made(options);
    exact->eval();
    there->eval();
    torch::manual_seed(8);
    const auto x = torch::randn({3, 40, 64}, torch::kDouble).to(dtype);
    const auto by = torch::randn({3, 40, 64}, torch::kDouble).to(dtype);
    for (nn::Moe* one : {&exact, &there}) (*one)->to(dtype);
    exact->to(torch::kDouble);  // of the rounded weights
    there->to(gpu().device());
    auto x_here = x.to(torch::kDouble).requires_grad_();
    auto x_there = x.to(gpu().device()).detach().requires_grad_();
    const auto wanted = exact->forward(x_here), got = there->forward(x_there);
    const auto grads = gradients(*exact, wanted, x_here, by.to(torch::kDouble));
    const auto own = gradients(*there, got, x_there, by.to(gpu().device()));
    const double precise = dtype == torch::kDouble ? 1e-10 : dtype == torch::kFloat ? 1e-4 : 3e-2;
    const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
      return (a.cpu().to(torch::kDouble) - b).norm().item<double>() <=
             precise * b.norm().item<double>();
    };
    EXPECT_TRUE(close(got, wanted)) << dtype;
    for (std::size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(close(own[i], grads[i])) << dtype << " gradient " << i;
  }
}

/// What a forward keeps for backward goes with its result, also where tokens travelled in halves.
TEST(MoeLayer, AForwardWithoutBackwardLeavesNothingBehind) {
  constexpr int64_t kTokens = 1024, kWidth = 256, kPasses = 20;
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.replica = 2, .expert = 2});
    nn::MoeImpl::Options options = options_of(false, 4, 2);
    options.router.width = kWidth;
    options.experts.overlaps = true;
    torch::nn::Module root;
    const auto moe = root.register_module("moe", nn::Moe(options));
    nn::cut(root, nn::moe_plan("moe", options), mesh);
    nn::initialize(root, 3);
    moe->eval();
    const auto x = torch::randn({1, kTokens, kWidth}).requires_grad_();
    const auto used = [] {
      const auto all = ::mallinfo2();
      return static_cast<double>(all.uordblks + all.hblkhd);
    };
    const auto pass = [&] { return moe->forward(x).sum().item<double>(); };
    (void)pass();
    world.barrier();
    const double before = used();
    world.barrier();
    for (int64_t i = 0; i < kPasses; ++i) (void)pass();
    world.barrier();
    const double sent = 2 * kTokens * kWidth * sizeof(float);  // of one rank, in one pass
    EXPECT_LT(used() - before, kPasses / 2 * sent);
    world.barrier();
  });
}

TEST(MoeLayer, RefusesARouterThatNoPatternMatches) {
  for (const Degrees& degrees : {Degrees{.context = 2}, Degrees{.tensor = 2}})
    run_world(kThreads, 2, [&](const Communicator& world) {
      torch::nn::Module root;
      root.register_module("moe", nn::Moe(options_of(false, 4, 2)));
      const Mesh mesh(world, degrees);
      EXPECT_THAT(
          [&] {
            nn::cut(root, {{"*.experts", nn::Style::Expert}}, mesh);
          },
          ThrowsMessage<MisuseError>(HasSubstr("no pattern matches the router 'moe.router'")));
    });
}

TEST(MoeLayer, RefusesExpertsThatCannotBeDealt) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    struct Root : torch::nn::Module {
    } root;
    const auto options = options_of(false, 4, 2);
    root.register_module("moe", nn::Moe(options));
    const Mesh mesh(world, {.replica = 3, .expert = 3});
    EXPECT_THAT([&] { nn::cut(root, nn::moe_plan("moe", options), mesh); },
                ThrowsMessage<MisuseError>(
                    HasSubstr("4 experts cannot be dealt evenly to expert 3: use a divisor of 4")));
  });
}

}  // namespace
}  // namespace trireme::test
