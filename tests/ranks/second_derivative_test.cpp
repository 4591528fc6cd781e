// Gradients of gradients: right, or refused. Never wrong without a word.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/backends.h"
#include "support/tiny_model.h"
#include "trireme/core/error.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/fully_sharded.h"

namespace trireme::test {
namespace {

namespace F = nn::functional;
using comm::Communicator;
using ::testing::HasSubstr;

using Inputs = std::vector<at::Tensor>;

at::Tensor sines(at::IntArrayRef shape, double seed, at::ScalarType dtype = at::kDouble) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return torch::sin(torch::arange(count, torch::kDouble) * 12.9898 + seed)
      .view(shape)
      .to(dtype)
      .requires_grad_();
}

/// The gradients of the squares of all first gradients of sum(tanh(f)^2).
Inputs second(const std::function<at::Tensor(const Inputs&)>& f, const Inputs& inputs) {
  const auto loss = f(inputs).tanh().pow(2).sum();
  const auto first = torch::autograd::grad({loss}, inputs, {}, true, /*create_graph=*/true);
  at::Tensor penalty = torch::zeros({}, loss.options());
  for (const at::Tensor& one : first) penalty = penalty + one.pow(2).sum();
  return torch::autograd::grad({penalty}, inputs);
}

void expect_close(const Inputs& got, const Inputs& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE((got[i] - wanted[i]).abs().max().item<double>(),
              tolerance * wanted[i].abs().max().item<double>())
        << "input " << i;
}

TEST(SecondDerivative, OfALinearIsTorchs) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-4}}) {
    const Inputs inputs = {sines({2, 3, 5}, 1, dtype), sines({4, 5}, 2, dtype),
                           sines({4}, 3, dtype)};
    expect_close(second([](const Inputs& in) { return nn::linear(in[0], in[1], in[2]); }, inputs),
                 second([](const Inputs& in) { return at::linear(in[0], in[1], in[2]); }, inputs),
                 tolerance);
  }
}

TEST(SecondDerivative, OfGeluIsTorchs) {
  const Inputs inputs = {sines({50}, 1, at::kFloat)};
  expect_close(second([](const Inputs& in) { return nn::gelu_tanh(in[0] * 3); }, inputs),
               second([](const Inputs& in) { return at::gelu(in[0] * 3, "tanh"); }, inputs), 1e-4);
}

/// A Column and a Row.
struct TwoImpl : nn::LayerImpl {
  explicit TwoImpl(const Mesh& mesh) {
    up = register_module("up", nn::Linear(6, 8));
    down = register_module("down", nn::Linear(8, 6));
    nn::cut(*this, {{"up", Style::Column}, {"down", Style::Row}}, mesh);
    nn::initialize(*this, 4);
    to(torch::kDouble);
  }
  Flow compute(const Flow& in) override {
    const Flow wide = up->forward(in);
    return down->forward(wide.with(torch::tanh(wide.x())));
  }
  nn::Linear up{nullptr}, down{nullptr};
};

TEST(SecondDerivative, OfLayersThatAreCutIsOneRanks) {
  const auto run = [](const Mesh& mesh) {
    TwoImpl two(mesh);
    const auto x = sines({3, 6}, 1);
    const auto y = two.forward(Flow(x)).x();
    const auto dx =
        torch::autograd::grad({y.tanh().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    // As a model is trained: the same loss on every rank of the tensor axis.
    (dx.pow(2).sum() + y.pow(2).sum()).backward();
    std::map<std::string, std::pair<nn::Parameter, at::Tensor>> all;
    for (const auto& one : nn::parameters_of(two))
      all.emplace(one.name, std::pair(one, one.tensor.grad()));
    return std::pair(x.grad(), all);
  };
  const auto [wanted_x, wanted] = run(mesh_of_one());
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.tensor = 2});
    const auto [dx, parts] = run(mesh);
    EXPECT_LE((dx - wanted_x).abs().max().item<double>(), 1e-13);
    for (const auto& [name, part] : parts)
      for (const LocalBox& held : part.first.layout.local_boxes(mesh.coord(), mesh.degrees()))
        EXPECT_LE((nn::part_of(part.second, held) - nn::box_of(wanted.at(name).second, held.box))
                      .abs()
                      .max()
                      .item<double>(),
                  1e-13)
            << name;
  });
}

/// y = A x, loss w.y^2 / 2: its gradient is g = A^T (w y), and that of g^2 / 2 is A^T (w A g).
TEST(SecondDerivative, OfACollectiveGoesThereAndBackAgain) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    constexpr int64_t kWhole = 5;
    const int64_t mine = even_range(kWhole, 3, world.rank()).count;
    struct Op {
      const char* name;
      std::function<at::Tensor(const at::Tensor&)> run;
      int64_t in, out;
    };
    const Op ops[] = {
        {"fan_out", [&](const at::Tensor& x) { return F::fan_out(x, world); }, 4, 4},
        {"fan_in", [&](const at::Tensor& x) { return F::fan_in(x, world); }, 4, 4},
        {"gather", [&](const at::Tensor& x) { return F::gather(x, 0, world, kWhole); }, mine,
         kWhole},
        {"scatter", [&](const at::Tensor& x) { return F::scatter(x, 0, world); }, kWhole, mine},
        {"join", [&](const at::Tensor& x) { return F::join(x, 0, world, kWhole); }, mine, kWhole},
        {"split", [&](const at::Tensor& x) { return F::split(x, 0, world); }, kWhole, mine}};
    for (const Op& op : ops) {
      const auto x = sines({op.in, 2}, world.rank());
      const auto w = sines({op.out, 2}, 7 + world.rank()).detach();
      const auto back = [&](const at::Tensor& dy) {  // its first backward, which others test
        const auto leaf = x.detach().clone().requires_grad_();
        return torch::autograd::grad({op.run(leaf)}, {leaf}, {dy})[0];
      };
      const auto forth = [&](const at::Tensor& in) { return op.run(in.detach()).detach(); };
      const auto g = back(w * forth(x));
      const auto wanted = back(w * forth(g));
      const auto loss = (w * op.run(x).pow(2)).sum() / 2;
      const auto first = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
      const auto got = torch::autograd::grad({first.pow(2).sum() / 2}, {x})[0];
      EXPECT_LE((first - g).abs().max().item<double>(), 1e-14) << op.name;
      EXPECT_LE((got - wanted).abs().max().item<double>(), 1e-13) << op.name;
    }
  });
}

std::string words_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "not refused";
}

TEST(SecondDerivative, IsRefusedWhereItCannotBe) {
  const auto x = sines({3, 4}, 1), w = sines({5, 4}, 2);
  const auto twice = [&](const at::Tensor& loss) {
    torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true);
  };
  EXPECT_THAT(words_of([&] {
                twice(nn::linear_cross_entropy(x, w, torch::tensor({0, 1, 4})).sum);
              }),
              HasSubstr("have none of their own"));
  nn::Linear layer(4, 4);
  nn::initialize(*layer, 1);
  layer->to(torch::kDouble);
  nn::recompute(*layer);
  EXPECT_THAT(words_of([&] { twice(layer->forward(x).sum()); }), HasSubstr("do not recompute"));
  run_world(kThreads, 2, [&](const Communicator& world) {
    nn::Linear sharded(4, 4);
    nn::initialize(*sharded, 1);
    sharded->to(torch::kDouble);
    parallel::FullySharded shards(*sharded, Mesh(world, {.shard = 2}));
    const auto own = sines({3, 4}, 1);
    EXPECT_THAT(words_of([&] {
                  torch::autograd::grad({sharded->forward(own).sum()}, {own}, {}, true, true);
                }),
                HasSubstr("use DataParallel"));
  });
}

}  // namespace
}  // namespace trireme::test
