// The collectives that autograd sees through, against finite differences and against one rank.
#include "trireme/nn/collectives.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/backends.h"
#include "support/tiny.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

namespace F = nn::functional;
using comm::Communicator;

constexpr double kStep = 1e-6, kGradcheck = 1e-7;  // central differences in float64

/// Numbers that look like chance. (Thread ranks would share torch's generator.)
at::Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return torch::sin(torch::arange(count, torch::kDouble) * 12.9898 +
                    static_cast<double>(seed) * 78.233)
      .view(shape);
}

/// A collective under test: from this rank's input to its output, and how the inputs of the ranks
/// depend on each other.
struct NamedOp {
  const char* name;
  std::function<at::Tensor(const at::Tensor&, const Communicator&)> run;
  bool same_input;  ///< every rank gives the same tensor (fan_out, split)
};

/// d(sum over ranks of weights . output)/d(element of one rank's input), by differences. Where
/// every rank gives the same tensor, all of them move.
at::Tensor differences(const NamedOp& op, const at::Tensor& x, const at::Tensor& weights,
                       const Communicator& world, int of_rank) {
  at::Tensor slope = torch::zeros_like(x);
  const auto total = [&](const at::Tensor& at) {
    const torch::NoGradGuard guard;
    at::Tensor sum = (op.run(at, world) * weights).sum().reshape({1});
    world.all_reduce(sum).wait();
    return sum.item<double>();
  };
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto moved = [&](double by) {
      at::Tensor copy = x.detach().clone();
      if (op.same_input || world.rank() == of_rank) copy.view({-1})[i] += by;
      return copy;
    };
    slope.view({-1})[i] = (total(moved(kStep)) - total(moved(-kStep))) / (2 * kStep);
  }
  return slope;
}

/// In gather and scatter ranks differ in what they do with the result; in join and fan_in all do
/// the same with it, and the loss of one of them is meant.
class Collectives : public ::testing::TestWithParam<int64_t> {};

TEST_P(Collectives, HaveTheGradientOfTheirFormula) {
  const int64_t dim = GetParam();
  for (const int ranks : {2, 3}) {
    run_world(kThreads, ranks, [&](const Communicator& world) {
      const int64_t whole = 5;  // uneven for two and for three
      const int64_t mine = even_range(whole, ranks, world.rank()).count;
      const auto shape = [&](int64_t size) {
        std::vector<int64_t> all = {2, 3, 4};
        all[static_cast<std::size_t>(dim)] = size;
        return all;
      };
      const NamedOp ops[] = {
          {"fan_out", [](const at::Tensor& x, const auto& g) { return F::fan_out(x, g); }, true},
          {"gather",
           [&](const at::Tensor& x, const auto& g) { return F::gather(x, dim, g, whole); }, false},
          {"scatter", [&](const at::Tensor& x, const auto& g) { return F::scatter(x, dim, g); },
           false},
          {"split", [&](const at::Tensor& x, const auto& g) { return F::split(x, dim, g); }, true},
          {"join", [&](const at::Tensor& x, const auto& g) { return F::join(x, dim, g, whole); },
           false},
          {"fan_in", [](const at::Tensor& x, const auto& g) { return F::fan_in(x, g); }, false},
      };
      for (const NamedOp& op : ops) {
        SCOPED_TRACE(op.name);
        const std::string name = op.name;
        const bool alike = name == "join" || name == "fan_in";
        const bool parts = name == "gather" || name == "join";
        const auto x = numbers(shape(parts ? mine : whole), op.same_input ? 1 : 10 + world.rank())
                           .requires_grad_();
        const auto weights =
            numbers(op.run(x.detach(), world).sizes(), alike ? 2 : 20 + world.rank());
        (op.run(x, world) * weights).sum().backward();
        // Every rank has the same loss where all use the result alike: it counts once.
        for (int rank = 0; rank < ranks; ++rank) {
          // Inputs of other sizes: each rank's elements are moved in its own turn.
          at::Tensor count = torch::tensor({x.numel()}, torch::kLong);
          world.broadcast(count, rank).wait();
          const auto probe = world.rank() == rank || op.same_input
                                 ? x.detach()
                                 : torch::zeros({count.item<int64_t>()}, torch::kDouble);
          const NamedOp moved{op.name,
                              [&](const at::Tensor& at, const Communicator& g) {
                                return op.run(
                                    world.rank() == rank || op.same_input ? at : x.detach(), g);
                              },
                              op.same_input};
          const auto slope = differences(moved, probe, weights, world, rank);
          if (world.rank() != rank && !op.same_input) continue;
          const auto expected = alike ? slope / ranks : slope;
          EXPECT_LE((x.grad() - expected).abs().max().item<double>(), kGradcheck);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Dims, Collectives, ::testing::Values(0, 1, 2));

TEST(CollectivesTwice, AddUpTheirGradients) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto x = torch::ones({2, 4}, torch::kDouble).requires_grad_();
    const auto y = F::fan_out(x, world);
    (y * 2 + y * y).sum().backward();
    EXPECT_TRUE(x.grad().equal(torch::full({2, 4}, 8.0, torch::kDouble))) << "2 ranks x (2 + 2y)";
    const auto part = torch::ones({1, 3}, torch::kDouble).requires_grad_();
    const auto a = F::gather(part, 0, world), b = F::gather(part, 0, world);
    (a * (world.rank() + 1) + b).sum().backward();
    EXPECT_TRUE(part.grad().equal(torch::full({1, 3}, 5.0, torch::kDouble))) << "1 + 2 + 1 + 1";
  });
}

TEST(CollectivesWithoutGradients, GiveTheSameAndKeepNoGraph) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto x = torch::full({2, 2}, world.rank() + 1.0).requires_grad_();
    const torch::NoGradGuard guard;
    const auto sum = F::fan_in(x, world);
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_TRUE(sum.equal(torch::full({2, 2}, 3.0)));
    EXPECT_TRUE(x.equal(torch::full({2, 2}, world.rank() + 1.0))) << "the input stays as it was";
    EXPECT_EQ(F::gather(x, 0, world).size(0), 4);
  });
}

TEST(CollectivesInAGroupOfOne, AreTheirArgument) {
  const Mesh mesh = mesh_of_one();
  const auto x = torch::ones({3, 4}).requires_grad_();
  const auto& group = mesh.world();
  for (const auto& y : {F::fan_out(x, group), F::fan_in(x, group), F::gather(x, 1, group),
                        F::scatter(x, 0, group), F::join(x, 0, group), F::split(x, 1, group)})
    EXPECT_TRUE(y.is_same(x)) << "no node, no copy";
}

TEST(CollectivesOfLongAndShortRows, MoveTheRightElements) {
  for (const int64_t width : {3, 20000}) {  // packed, and where they lie
    run_world(kThreads, 3, [&](const Communicator& world) {
      const auto whole = torch::arange(2 * 7 * width, torch::kDouble).view({2, 7, width});
      const Range mine = even_range(7, 3, world.rank());
      const auto part = whole.narrow(1, mine.begin, mine.count).contiguous();
      EXPECT_TRUE(F::gather(part, 1, world, 7).equal(whole));
      EXPECT_TRUE(F::scatter(whole, 1, world).equal(part * 3));
      EXPECT_TRUE(F::split(whole, 1, world).equal(part));
      EXPECT_EQ(F::gather(part.narrow(0, 0, 0), 1, world, 7).sizes(),
                (std::vector<int64_t>{0, 7, width}));
      EXPECT_THROW(F::gather(part, 1, world, 17), MisuseError);
      EXPECT_THROW(F::split(whole, 3, world), MisuseError);
    });
  }
}

}  // namespace
}  // namespace trireme::test
