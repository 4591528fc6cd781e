// RMS norm, SwiGLU and rotary positions against their formulas, their gradients and the gradients
// of these.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/llama.h"
#include "support/tiny.h"
#include "trireme/core/error.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

using Inputs = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Inputs&)>;

at::Tensor sines(at::IntArrayRef shape, double seed, at::ScalarType dtype) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), torch::kDouble) * 12.9898 + seed)
      .view(shape)
      .to(dtype)
      .requires_grad_();
}

/// The value, the gradients of sum(tanh(f)^2), and those of the squares of these gradients.
Inputs derivatives(const Function& f, const Inputs& inputs) {
  const at::Tensor y = f(inputs);
  Inputs all = {y};
  const auto plain = torch::autograd::grad({y.tanh().pow(2).sum()}, inputs, {}, true);
  const auto first = torch::autograd::grad({f(inputs).tanh().pow(2).sum()}, inputs, {}, true,
                                           /*create_graph=*/true);
  at::Tensor penalty = torch::zeros({}, y.options());
  for (const at::Tensor& one : first) penalty = penalty + one.pow(2).sum();
  const auto second = torch::autograd::grad({penalty}, inputs);
  for (const auto& some : {plain, first, second}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

void expect_same(const Function& ours, const Function& formula, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& weight = {}) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 2e-5}}) {
    Inputs inputs = {sines(shape, 1, dtype)};
    if (!weight.empty()) inputs.push_back(sines(weight, 2, dtype));
    Inputs exact;
    for (const at::Tensor& one : inputs)
      exact.push_back(one.detach().to(at::kDouble).requires_grad_());
    const Inputs got = derivatives(ours, inputs), wanted = derivatives(formula, exact);
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LE((got[i].to(at::kDouble) - wanted[i]).abs().max().item<double>(),
                tolerance * wanted[i].abs().max().item<double>())
          << "result " << i << " of " << shape;
  }
}

constexpr double kEpsilon = 1e-5;

TEST(LlamaLayers, RmsNormIsItsFormula) {
  // Widths below, at and beside the number of elements that a vector has; rows of several blocks.
  for (const auto& shape : {std::vector<int64_t>{3, 5, 1}, {2, 7, 16}, {150, 33}, {2, 3, 300}}) {
    for (const bool passes : {false, true}) {
      const auto ours = [&](const Inputs& in) {
        nn::RmsNorm norm(shape.back(),
                         nn::RmsNormImpl::Options{.epsilon = kEpsilon, .passes_input = passes});
        norm->weight = in[1];
        const nn::Flow out = norm->forward(nn::Flow(in[0]));
        return passes ? out.tensors[0] + out.tensors[1] * 0.3 : out.x();
      };
      const auto formula = [&](const Inputs& in) {
        const at::Tensor y = in[0] / torch::sqrt(in[0].pow(2).mean(-1, true) + kEpsilon) * in[1];
        return passes ? y + in[0] * 0.3 : y;
      };
      expect_same(ours, formula, shape, {shape.back()});
    }
  }
}

TEST(LlamaLayers, SwiGluIsItsFormula) {
  for (const auto& shape : {std::vector<int64_t>{3, 5, 2}, {2, 7, 32}, {50, 66}})
    expect_same([](const Inputs& in) { return nn::swiglu(in[0] * 4); },
                [](const Inputs& in) {
                  const auto parts = (in[0] * 4).chunk(2, -1);
                  return torch::silu(parts[0]) * parts[1];
                },
                shape);
}

TEST(LlamaLayers, SwiGluSurvivesLargeNumbers) {
  const at::Tensor z = torch::tensor({{-200.F, 200.F, 2.F, 3.F}});
  EXPECT_LE((nn::swiglu(z) - torch::tensor({{0.F, 600.F}})).abs().max().item<float>(), 1e-30)
      << nn::swiglu(z);
}

nn::RotaryOptions options_of(nn::RotaryPairs pairs) {
  return {.head = 8, .theta = 100, .pairs = pairs, .trained_on = 16};
}

/// Heads [B, T, n, D] turned as complex numbers.
at::Tensor turned_plainly(const at::Tensor& heads, nn::RotaryPairs pairs, int64_t begin) {
  const auto B = heads.size(0), T = heads.size(1), n = heads.size(2), half = heads.size(3) / 2;
  const at::Tensor frequency = torch::pow(100., torch::arange(half, at::kDouble) / -double(half));
  const at::Tensor angle = torch::outer(torch::arange(begin, begin + T, at::kDouble), frequency);
  const at::Tensor turn = torch::polar(torch::ones_like(angle), angle).unsqueeze(1);
  if (pairs == nn::RotaryPairs::Neighbours)
    return torch::view_as_real(torch::view_as_complex(heads.reshape({B, T, n, half, 2})) * turn)
        .flatten(3);
  const auto parts = heads.chunk(2, -1);
  const at::Tensor y = torch::complex(parts[0], parts[1]) * turn;
  return torch::cat({torch::real(y), torch::imag(y)}, -1);
}

TEST(LlamaLayers, RotaryTurnsPairsByTheirPosition) {
  constexpr int64_t kQ = 4, kKv = 2, kBegin = 3;
  for (const auto pairs : {nn::RotaryPairs::Halves, nn::RotaryPairs::Neighbours}) {
    const nn::Rotary rotary(options_of(pairs));
    const auto ours = [&](const Inputs& in) {
      const at::Tensor qkv = in[0] * 1;  // memory of its own: it is written to
      return nn::turned(qkv, rotary.heads(qkv, Positions::from(kBegin), kQ, kKv));
    };
    const auto formula = [&](const Inputs& in) {
      const auto heads = in[0].unflatten(2, {kQ + 2 * kKv, 8});
      return torch::cat({turned_plainly(heads.narrow(2, 0, kQ + kKv), pairs, kBegin),
                         heads.narrow(2, kQ + kKv, kKv)},
                        2)
          .flatten(2);
    };
    expect_same(ours, formula, {2, 5, (kQ + 2 * kKv) * 8});
    const Inputs in = {sines({2, 5, 64}, 1, at::kDouble)};
    const at::Tensor in_16 = in[0].detach().to(at::kBFloat16);
    EXPECT_LE((ours({in_16}).to(at::kDouble) - formula(in)).abs().max().item<double>(), 0x1p-7)
        << "16 bits turn in float32";
  }
}

TEST(LlamaLayers, AttentionDependsOnDistancesAlone) {
  nn::CausalAttention attention(nn::CausalAttentionImpl::Options{
      .width = 24,
      .heads = 3,
      .kv_heads = 1,
      .head = 8,
      .in_deviation = 0.5,
      .rotary = std::make_shared<nn::Rotary>(options_of(nn::RotaryPairs::Halves))});
  nn::initialize(*attention, 1);
  attention->to(at::kDouble);
  const at::Tensor x = sines({2, 6, 24}, 1, at::kDouble).detach();
  const auto at_position = [&](int64_t begin) {
    return attention->forward(nn::Flow(x, where({0, 1}, 1, begin))).x();
  };
  // 40 is beyond the tables' first rows.
  for (const int64_t begin : {1, 7, 40})
    EXPECT_LE((at_position(begin) - at_position(0)).abs().max().item<double>(), 1e-12);
  const at::Tensor order = torch::tensor({1, 0, 2, 3, 4, 5});
  const at::Tensor other = attention->forward(nn::Flow(x.index_select(1, order))).x();
  EXPECT_GT((other - at_position(0)).select(1, 5).abs().max().item<double>(), 1e-3)
      << "the last position sees in which order the others are";
}

TEST(LlamaLayers, RefuseHeadsWithoutPairs) {
  EXPECT_THROW(nn::Rotary({.head = 5}), MisuseError);
  EXPECT_THROW(nn::Rotary({.head = 2, .scaling = nn::RotaryScaling::Dynamic}), MisuseError);
}

TEST(Llama, GivesTheLossOfItsLogitsAndSeesOnlyThePast) {
  for (const bool tie : {true, false}) {
    models::Llama model(models::LlamaOptions{.layers = 2,
                                             .hidden = 16,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .seq = 8,
                                             .vocab = 32,
                                             .qkv_bias = true,
                                             .tie = tie},
                        mesh_of_one());
    nn::initialize(*model, 1);
    model->to(torch::kDouble);
    const auto tokens = (torch::arange(24, torch::kLong) * 7 % 32).view({3, 8});
    const auto loss = model->loss(tokens, tokens);
    const auto plain = nn::cross_entropy(model->forward(tokens), tokens);
    EXPECT_NEAR(loss.sum.item<double>(), plain.sum.item<double>(), 1e-10);
    const auto none = model->loss(tokens.narrow(0, 0, 0), tokens.narrow(0, 0, 0));
    none.sum.backward();
    EXPECT_EQ(none.weight.item<double>(), 0) << "no rows go through all layers";
    auto other = tokens.clone();
    other[0][5] = (other[0][5] + 1) % 32;
    const auto a = model->forward(tokens), b = model->forward(other);
    EXPECT_TRUE(a.narrow(1, 0, 5).equal(b.narrow(1, 0, 5)));
    EXPECT_FALSE(a.narrow(1, 5, 1).equal(b.narrow(1, 5, 1)));
  }
}

TEST(Llama, HasTheParametersThatOthersRelyOn) {
  models::Llama model(models::LlamaOptions{.layers = 1,
                                           .hidden = 16,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 6,
                                           .ffn = 20,
                                           .vocab = 32,
                                           .qkv_bias = true,
                                           .tie = false},
                      mesh_of_one());
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& one : nn::parameters_of(*model)) shapes[one.name] = one.layout.whole();
  const std::map<std::string, std::vector<int64_t>> wanted = {
      {"embed.weight", {32, 16}},
      {"layers.0.norm_1.weight", {16}},
      {"layers.0.attn.qkv.weight", {48, 16}},
      {"layers.0.attn.qkv.bias", {48}},
      {"layers.0.attn.proj.weight", {16, 24}},
      {"layers.0.norm_2.weight", {16}},
      {"layers.0.mlp.gate_up.weight", {40, 16}},
      {"layers.0.mlp.down.weight", {16, 20}},
      {"norm.weight", {16}},
      {"lm_head.weight", {32, 16}}};
  EXPECT_EQ(shapes, wanted);
}

}  // namespace
}  // namespace trireme::test
