// Each GPU kernel against its formula in float64, over odd, tiny and large shapes.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "support/on_gpu.h"
#include "trireme/core/philox.h"
#include "trireme/cuda/adamw.h"
#include "trireme/cuda/columns.h"
#include "trireme/cuda/cross_entropy.h"
#include "trireme/cuda/dropout.h"
#include "trireme/cuda/embedding.h"
#include "trireme/cuda/gelu.h"
#include "trireme/cuda/matmul.h"
#include "trireme/cuda/norm.h"
#include "trireme/cuda/rotary.h"
#include "trireme/cuda/squares.h"
#include "trireme/cuda/swiglu.h"

namespace trireme::test {
namespace {

namespace cu = trireme::cuda;

const std::vector<at::ScalarType> kTypes{at::kBFloat16, at::kHalf, at::kFloat};

/// The rounding of one number of the dtype.
double unit(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0x1p-23;
}

/// The largest difference, in roundings of the largest number. A result that was computed in
/// float32 and rounded once is within one of them, and a little for sums.
double roundings(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0;
  const auto difference = (got.to(at::kDouble) - want).abs().max().item<double>();
  const auto largest = want.abs().max().item<double>();
  return difference / (unit(got.scalar_type()) * std::max(largest, 1e-30));
}

at::Tensor draw(at::IntArrayRef shape, at::ScalarType dtype, double deviation = 1) {
  return (torch::randn(shape, gpu()) * deviation).to(dtype);
}

TEST(GpuKernels, NormsEqualTheirFormula) {
  NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : kTypes)
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 7}, {5, 8}, {1000, 768}, {17, 1024}, {2, 4096}, {33, 2047}, {4099, 768}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", c10::toString(dtype), rows, width));
      const auto x = draw({rows, width}, dtype) + 3, g = draw({width}, dtype),
                 b = draw({width}, dtype), dy = draw({rows, width}, dtype),
                 also = draw({rows, width}, dtype);
      const auto y = at::empty_like(x), again = at::empty_like(x);
      const auto statistics = cu::norm(y, x, g, b, 1e-5);
      cu::norm_again(again, x, g, b, statistics);
      EXPECT_TRUE(torch::equal(y, again));
      auto x64 = x.to(at::kDouble).requires_grad_(), g64 = g.to(at::kDouble).requires_grad_(),
           b64 = b.to(at::kDouble).requires_grad_();
      const auto want = at::layer_norm(x64, {width}, g64, b64, 1e-5);
      EXPECT_LT(roundings(y, want.detach()), 4);
      want.backward(dy.to(at::kDouble));
      const auto got = cu::norm_backward(dy, x, g, statistics, also);
      if (width > 1) {
        EXPECT_LT(roundings(got.x, x64.grad() + also.to(at::kDouble)), 8);
      }
      EXPECT_LT(roundings(got.weight, g64.grad()), 8);
      EXPECT_LT(roundings(got.bias, b64.grad()), 8);
      const auto alone = cu::norm_backward(dy, x, g, statistics, {});
      // A row of one element has a gradient of 0: 1 / sqrt(epsilon) times the difference of two
      // equal numbers, one of which is rounded.
      const auto largest = (dy * g).abs().max().item<double>();
      if (width > 1) {
        EXPECT_LT(roundings(alone.x, x64.grad()), 8);
      } else {
        EXPECT_LE(alone.x.abs().max().item<double>(), 0x1p-23 * largest / std::sqrt(1e-5));
      }
      const auto twice = cu::norm_backward(dy, x, g, statistics, also);
      EXPECT_TRUE(torch::equal(got.weight, twice.weight) && torch::equal(got.bias, twice.bias));
    }
}

TEST(GpuKernels, ColumnSumsEqualTheirFormula) {
  NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : kTypes)
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 7}, {0, 5}, {1000, 768}, {32768, 3072}, {31, 50257}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", c10::toString(dtype), rows, width));
      const auto x = draw({rows, width}, dtype);
      const auto got = at::empty({width}, x.options());
      cu::column_sums(got, x);
      EXPECT_LT(roundings(got, x.to(at::kDouble).sum(0)), 8);
    }
}

TEST(GpuKernels, GeluEqualsItsFormula) {
  NEEDS_GPU();
  for (const auto dtype : kTypes)
    for (const int64_t count : {1, 7, 8, 100003}) {
      const auto x = (torch::linspace(-12, 12, count, gpu())).to(dtype), dy = draw({count}, dtype);
      auto x64 = x.to(at::kDouble).requires_grad_();
      const auto want = at::gelu(x64, "tanh");
      want.backward(dy.to(at::kDouble));
      EXPECT_LT(roundings(cu::gelu(x), want.detach()), 2) << count;
      EXPECT_LT(roundings(cu::gelu_backward(dy, x), x64.grad()), 8) << count;
    }
}

TEST(GpuKernels, RmsNormsEqualTheirFormula) {
  NEEDS_GPU();
  torch::manual_seed(5);
  for (const auto dtype : kTypes)
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 7}, {1000, 768}, {17, 1024}, {2, 4096}, {33, 2047}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", c10::toString(dtype), rows, width));
      const auto x = draw({rows, width}, dtype) + 3, g = draw({width}, dtype),
                 dy = draw({rows, width}, dtype), also = draw({rows, width}, dtype);
      const auto y = at::empty_like(x), again = at::empty_like(x);
      const auto statistics = cu::norm(y, x, g, {}, 1e-5);
      EXPECT_FALSE(statistics.mean.defined());
      cu::norm_again(again, x, g, {}, statistics);
      EXPECT_TRUE(torch::equal(y, again));
      auto x64 = x.to(at::kDouble).requires_grad_(), g64 = g.to(at::kDouble).requires_grad_();
      const auto want = x64 * (x64.square().mean(-1, true) + 1e-5).rsqrt() * g64;
      EXPECT_LT(roundings(y, want.detach()), 4);
      want.backward(dy.to(at::kDouble));
      const auto got = cu::norm_backward(dy, x, g, statistics, also);
      EXPECT_FALSE(got.bias.defined());
      EXPECT_LT(roundings(got.x, x64.grad() + also.to(at::kDouble)), 8);
      EXPECT_LT(roundings(got.weight, g64.grad()), 8);
      const auto twice = cu::norm_backward(dy, x, g, statistics, also);
      EXPECT_TRUE(torch::equal(got.weight, twice.weight));
    }
}

TEST(GpuKernels, SwigluEqualsItsFormula) {
  NEEDS_GPU();
  torch::manual_seed(6);
  for (const auto dtype : kTypes)
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 7}, {1000, 2816}, {5, 1368}, {0, 8}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", c10::toString(dtype), rows, width));
      const auto z = draw({rows, 2 * width}, dtype, 3), dh = draw({rows, width}, dtype);
      auto z64 = z.to(at::kDouble).requires_grad_();
      const auto parts = z64.chunk(2, -1);
      const auto want = at::silu(parts[0]) * parts[1];
      want.backward(dh.to(at::kDouble));
      EXPECT_LT(roundings(cu::swiglu(z), want.detach()), 2);
      EXPECT_LT(roundings(cu::swiglu_backward(dh, z), z64.grad()), 4);
    }
}

/// The formula of both pairings, in float64: x is [B, H, T, D].
at::Tensor turned(const at::Tensor& x, const cu::RotaryHeads& heads) {
  const auto c = heads.cosines.to(at::kDouble), s = heads.sines.to(at::kDouble);
  const int64_t half = x.size(3) / 2;
  const auto pairs =
      heads.neighbours ? x.unflatten(3, {half, 2}).unbind(-1) : x.unflatten(3, {2, half}).unbind(3);
  const auto a = pairs[0] * c - pairs[1] * s, b = pairs[1] * c + pairs[0] * s;
  return heads.neighbours ? at::stack({a, b}, -1).flatten(3) : at::cat({a, b}, 3);
}

TEST(GpuKernels, RotationsAndTheirGradientsEqualTheirFormula) {
  NEEDS_GPU();
  torch::manual_seed(7);
  struct Case {
    int64_t B, T, q, kv, D;
  };
  for (const auto dtype : kTypes)
    for (const bool neighbours : {false, true})
      for (const auto& [B, T, q, kv, D] : {Case{2, 5, 4, 2, 8}, Case{1, 1, 1, 1, 2},
                                           Case{3, 33, 6, 6, 64}, Case{2, 7, 3, 1, 20}}) {
        SCOPED_TRACE(fmt::format("{} {} heads of {}, {}", c10::toString(dtype), q, D, neighbours));
        const auto angles = torch::rand({T, D / 2}, gpu()) * 100;
        const cu::RotaryHeads heads{q, kv, neighbours, angles.cos(), angles.sin()};
        const auto qkv = draw({B, T, (q + 2 * kv) * D}, dtype);
        auto x = qkv.to(at::kDouble).requires_grad_();
        const auto parts =
            x.view({B, T, q + 2 * kv, D}).transpose(1, 2).split_with_sizes({q, kv, kv}, 1);
        const auto want = at::cat({turned(parts[0], heads), turned(parts[1], heads), parts[2]}, 1)
                              .transpose(1, 2)
                              .reshape_as(x);
        const auto got = qkv.clone();
        cu::rotate(got, heads);
        EXPECT_LT(roundings(got, want.detach()), 2);
        const auto dy = draw({B, T, (q + 2 * kv) * D}, dtype);
        want.backward(dy.to(at::kDouble));
        const auto by =
            dy.view({B, T, q + 2 * kv, D}).transpose(1, 2).split_with_sizes({q, kv, kv}, 1);
        EXPECT_LT(roundings(cu::unrotated_gradient(by[0], by[1], by[2], heads), x.grad()), 2);
        EXPECT_LT(
            roundings(cu::unrotated_gradient(by[0].contiguous(), by[1].contiguous(), by[2], heads),
                      x.grad()),
            2);
      }
}

TEST(GpuKernels, CrossEntropyEqualsItsFormula) {
  NEEDS_GPU();
  torch::manual_seed(3);
  for (const auto dtype : kTypes)
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 7}, {64, 50304}, {5, 50257}, {3, 200000}, {9, 256}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", c10::toString(dtype), rows, width));
      const auto logits = draw({rows, width}, dtype, 4);
      const auto targets = torch::randint(width, {rows}, gpu().dtype(at::kLong));
      if (rows > 2) targets[1] = -100;
      const auto scale = torch::full({}, 8.0, gpu());
      auto z = logits.to(at::kDouble).requires_grad_();
      const auto want = at::cross_entropy_loss(z, targets, {}, at::Reduction::None, -100);
      (want.sum() * 8).backward();
      const auto in_place = logits.clone();
      const auto losses = cu::cross_entropy(in_place, targets, -100, true, scale);
      EXPECT_LT((losses.to(at::kDouble) - want.detach()).abs().max().item<double>(), 2e-5);
      EXPECT_LT(roundings(in_place, z.grad()), dtype == at::kFloat ? 64 : 2);
      const auto only = logits.clone();
      EXPECT_TRUE(torch::equal(cu::cross_entropy(only, targets, -100, false, {}), losses));
      EXPECT_TRUE(torch::equal(only, logits));
    }
  const auto logits = draw({2, 10}, at::kBFloat16);
  const auto targets = torch::tensor({3, 10}, gpu().dtype(at::kLong));
  const auto losses = cu::cross_entropy(logits, targets, -100, true, {});
  EXPECT_TRUE(losses[0].isfinite().item<bool>() && losses[1].isnan().item<bool>());
}

TEST(GpuKernels, EmbeddingGradientEqualsItsFormula) {
  NEEDS_GPU();
  torch::manual_seed(4);
  for (const auto dtype : kTypes)
    for (const auto& [places, width, rows] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 1}, {100, 7, 5}, {1000, 768, 50304}, {5000, 64, 3}, {0, 8, 4}, {4096, 96, 1}}) {
      SCOPED_TRACE(
          fmt::format("{} {} places of {}, {} rows", c10::toString(dtype), places, width, rows));
      // Natural text: few tokens are most of it.
      const auto index = (torch::rand({places}, gpu()).pow(4) * double(rows)).to(at::kLong);
      const auto dy = draw({places, width}, dtype);
      const auto want = torch::zeros({rows, width}, gpu().dtype(at::kDouble))
                            .index_add_(0, index, dy.to(at::kDouble));
      const auto got = cu::embedding_gradient(dy, index, rows);
      EXPECT_LT(roundings(got, want), 4);
      EXPECT_TRUE(torch::equal(got, cu::embedding_gradient(dy, index, rows)));
    }
}

TEST(GpuKernels, ProductsAndTheirEpiloguesEqualTheirFormulas) {
  NEEDS_GPU();
  torch::manual_seed(5);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
             {8, 16, 24}, {64, 768, 3072}, {4096, 768, 2304}, {1000, 64, 8}}) {
      SCOPED_TRACE(fmt::format("{} {} x {} -> {}", c10::toString(dtype), rows, in, out));
      const auto x = draw({rows, in}, dtype), w = draw({out, in}, dtype, 0.1),
                 b = draw({out}, dtype), r = draw({rows, out}, dtype),
                 dy = draw({rows, out}, dtype), before = draw({rows, in}, dtype);
      const auto wide = [](const at::Tensor& one) { return one.to(at::kDouble); };
      const auto plain = at::matmul(wide(x), wide(w).t());
      const auto y = at::empty({rows, out}, x.options()), z = at::empty_like(y);
      ASSERT_TRUE(cu::product(y, x, w));
      EXPECT_LT(roundings(y, plain), 2);
      ASSERT_TRUE(cu::product(y, x, w, {.bias = b, .residual = r}));
      EXPECT_LT(roundings(y, plain + wide(b) + wide(r)), 2);
      ASSERT_TRUE(cu::product(y, x, w, {.bias = b, .gelu_of = z}));
      EXPECT_LT(roundings(z, plain + wide(b)), 2);
      EXPECT_LT(roundings(y, at::gelu(plain + wide(b), "tanh")), 3);
      const auto dx = at::empty({rows, in}, x.options());
      ASSERT_TRUE(cu::input_gradient(dx, dy, w));
      const auto plain_dx = at::matmul(wide(dy), wide(w));
      EXPECT_LT(roundings(dx, plain_dx), 2);
      ASSERT_TRUE(cu::input_gradient(dx, dy, w, before));
      EXPECT_LT(roundings(dx, at::gelu_backward(plain_dx, wide(before), "tanh")), 8);
      const auto plain_dw = at::matmul(wide(dy).t(), wide(x));
      const auto dw = at::empty({out, in}, x.options()), sums = at::ones({out, in}, gpu());
      ASSERT_TRUE(cu::weight_gradient(dw, dy, x));
      EXPECT_LT(roundings(dw, plain_dw), 2);
      ASSERT_TRUE(cu::weight_gradient(sums, dy, x, /*add=*/true));
      EXPECT_LT((wide(sums) - plain_dw - 1).abs().max().item<double>(),
                1e-4 * plain_dw.abs().max().item<double>());
    }
}

TEST(GpuKernels, DropoutMasksHaveTheBitsOfPhilox) {
  NEEDS_GPU();
  const std::vector<int64_t> ids{5, 1, int64_t{1} << 40};
  const auto samples = torch::tensor(ids, at::kLong).to(at::kCUDA);
  for (const auto& [runs, run, first, stride] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 0, 1}, {4, 7, 3, 11}, {1, 1000, 2, 1000}, {3, 16, 32, 64}}) {
    const auto mask = torch::empty({3, runs, run}, gpu());
    cu::dropout_mask(mask, samples, 0x123456789abcdefull, {runs, run, first, stride}, 0x60000000u,
                     1.6);
    const auto host = mask.cpu();
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t i = 0; i < runs; ++i)
        for (int64_t k = 0; k < run; ++k) {
          const auto element = static_cast<uint64_t>(first + i * stride + k);
          const auto words = core::philox(
              0x123456789abcdefull, static_cast<uint64_t>(ids[std::size_t(row)]), element / 4);
          EXPECT_EQ(host[row][i][k].item<float>(), words[element % 4] < 0x60000000u ? 0.f : 1.6f);
        }
  }
}

at::Tensor number(double value, at::ScalarType dtype = at::kDouble) {
  return torch::full({}, value, gpu().dtype(dtype));
}

TEST(GpuKernels, AdamWEqualsItsFormula) {
  NEEDS_GPU();
  torch::manual_seed(6);
  for (const auto dtype : kTypes) {
    // More tensors than one launch takes, some of which do not begin at an even address.
    std::vector<cu::AdamWTensor> tensors;
    std::vector<at::Tensor> want, want_average, want_square;
    const double rate = 1e-2, divisor = 3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
    for (int i = 0; i < 60; ++i) {
      const int64_t count = i == 7 ? 100'003 : 1 + i * 37, offset = i % 3;
      const auto part = [&](const at::Tensor& all) { return all.narrow(0, offset, count); };
      const double updates = 1 + i;
      tensors.push_back(
          {.master = part(draw({count + 4}, at::kFloat)),
           .gradient = part(draw({count + 4}, dtype)),
           .average = part(draw({count + 4}, at::kFloat)),
           .square = part(draw({count + 4}, at::kFloat)).square_(),
           .weight = i % 4 == 0 ? at::Tensor()
                                : part(torch::zeros({count + 4}, gpu().dtype(at::kBFloat16))),
           .count = number(updates, at::kFloat),
           .decays = i % 2 == 0});
      const auto wide = [](const at::Tensor& one) { return one.to(at::kDouble); };
      const auto& one = tensors.back();
      const auto g = wide(one.gradient) / divisor;
      want_average.push_back(wide(one.average) * beta1 + g * (1 - beta1));
      want_square.push_back(wide(one.square) * beta2 + g * g * (1 - beta2));
      want.push_back(wide(one.master) * (one.decays ? 1 - rate * decay : 1) -
                     want_average.back() * (rate / (1 - std::pow(beta1, updates))) /
                         ((want_square.back() / (1 - std::pow(beta2, updates))).sqrt() + epsilon));
    }
    const cu::AdamWStep step{.beta1 = beta1,
                             .beta2 = beta2,
                             .epsilon = epsilon,
                             .decay = decay,
                             .rate = number(rate),
                             .divisor = number(divisor),
                             .skip = number(1, at::kFloat)};
    const auto untouched = tensors[7].master.clone();
    cu::adamw(tensors, step);
    EXPECT_TRUE(torch::equal(tensors[7].master, untouched)) << "skip";
    cu::AdamWStep now = step;
    now.skip = number(0, at::kFloat);
    cu::adamw(tensors, now);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      SCOPED_TRACE(fmt::format("{}, tensor {}", c10::toString(dtype), i));
      EXPECT_LT(roundings(tensors[i].master, want[i]), 4);
      EXPECT_LT(roundings(tensors[i].average, want_average[i]), 4);
      EXPECT_LT(roundings(tensors[i].square, want_square[i]), 4);
      if (!tensors[i].weight.defined()) continue;
      EXPECT_TRUE(torch::equal(tensors[i].weight, tensors[i].master.to(at::kBFloat16)));
    }
  }
}

TEST(GpuKernels, SumsOfSquaresEqualTheirFormulaAndTellWhatIsNotFinite) {
  NEEDS_GPU();
  torch::manual_seed(7);
  for (const auto dtype : kTypes) {
    std::vector<cu::Squared> tensors;
    double want = 0;
    for (int i = 0; i < 130; ++i) {
      const auto x = draw({i == 3 ? 1'000'003 : 1 + i * 91}, dtype).narrow(0, i % 2, 1 + i * 90);
      tensors.push_back({x, i % 5 != 0});
      if (i % 5 != 0) want += x.to(at::kDouble).square().sum().item<double>();
    }
    tensors.push_back({torch::empty({0}, gpu().dtype(dtype)), true});
    const auto first = cu::sum_of_squares(tensors, gpu().device());
    EXPECT_NEAR(first.item<double>(), want, 1e-6 * want);
    EXPECT_TRUE(torch::equal(first, cu::sum_of_squares(tensors, gpu().device())));
    tensors[5].tensor.fill_(std::numeric_limits<double>::infinity());  // does not count
    EXPECT_TRUE(std::isnan(cu::sum_of_squares(tensors, gpu().device()).item<double>()));
  }
  EXPECT_EQ(cu::sum_of_squares({}, gpu().device()).item<double>(), 0);
}

}  // namespace
}  // namespace trireme::test
