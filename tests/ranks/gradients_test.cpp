// The cut never changes the answer: gradients over any split of a batch equal those of one process,
// in float64, to 1e-12 of the largest element of each tensor.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <random>

#include "support/backends.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using parallel::DataParallel;
using parallel::Micro;

constexpr double kSameGradient = 1e-12;  // float64: sums of a few hundred terms in another order

/// A model with all that makes reductions hard: a tied weight, a weight that only some rows use,
/// one that nobody uses, a frozen one, and sizes that divide by nothing.
struct OddImpl : torch::nn::Module {
  struct Shape {
    int64_t in = 5, width = 7, layers = 2;
    bool tied = true, gated = true, unused = true;
  };
  explicit OddImpl(Shape shape_) : shape(shape_) {
    first = register_module("first", torch::nn::Linear(shape.in, shape.width));
    for (int64_t i = 0; i < shape.layers; ++i)
      inner.push_back(register_module("inner" + std::to_string(i),
                                      torch::nn::Linear(shape.width, shape.width)));
    if (shape.gated) gate = register_parameter("gate", torch::empty({shape.width}));
    if (shape.unused) unused = register_parameter("unused", torch::empty({3, 2}));
    frozen = register_parameter("frozen", torch::empty({shape.width}), /*requires_grad=*/false);
    if (!shape.tied) last = register_module("last", torch::nn::Linear(shape.width, shape.in));
    to(torch::kDouble);
    const torch::NoGradGuard guard;
    double value = 0.3;
    for (auto& p : parameters()) {
      for (int64_t i = 0; i < p.numel(); ++i) {
        value = std::fmod(value * 7.13 + 0.377, 1.0);
        p.view({-1})[i] = value - 0.5;
      }
    }
  }

  /// Rows whose label is negative are masked; rows whose first feature is over 1 use the gate.
  nn::Loss loss(const at::Tensor& x, const at::Tensor& labels) {
    auto y = torch::tanh(first(x));
    for (auto& layer : inner) y = torch::tanh(layer(y)) + y;
    y = y * frozen;
    if (shape.gated) {
      const auto rows = torch::nonzero(x.select(1, 0) > 1).flatten();
      if (rows.numel() > 0) y = y.index_add(0, rows, gate.expand({rows.numel(), -1}));
    }
    const auto logits = shape.tied ? torch::matmul(y, first->weight) : last(y);
    return nn::cross_entropy(logits, labels);
  }

  Shape shape;
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::vector<torch::nn::Linear> inner;
  at::Tensor gate, unused, frozen;
};
TORCH_MODULE(Odd);

/// One random case: a model, three batches, and how each falls to ranks and accumulation steps.
struct RandomCase {
  explicit RandomCase(unsigned seed) : random(seed) {
    ranks = pick(1, 5);
    micros = pick(1, 4);
    shape = {pick(2, 6), pick(2, 9), pick(0, 3), pick(0, 1) == 1, pick(0, 1) == 1, pick(0, 1) == 1};
    sizes = {.first_bytes = pick(1, 400), .bytes = pick(1, 900)};
    for (int step = 0; step < 3; ++step) {
      const int64_t rows = pick(0, 3) == 0 ? pick(1, 3) : pick(4, 24);
      torch::manual_seed(seed * 31 + static_cast<unsigned>(step));
      inputs.push_back(torch::randn({rows, shape.in}, torch::kDouble));
      auto label = torch::randint(0, shape.in, {rows}, torch::kLong);
      if (pick(0, 1) == 1)  // masked, not all of them
        label.masked_fill_(torch::rand({rows}) < 0.3, nn::kIgnored)[0] = 0;
      labels.push_back(label);
      std::vector<int64_t> cuts = {0, rows};
      for (int i = 1; i < ranks * micros; ++i) cuts.push_back(pick(0, static_cast<int>(rows)));
      std::sort(cuts.begin(), cuts.end());
      splits.push_back(cuts);
    }
  }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

  std::mt19937 random;
  int ranks = 1, micros = 1;
  OddImpl::Shape shape;
  parallel::BucketSizes sizes;
  std::vector<at::Tensor> inputs, labels;
  std::vector<std::vector<int64_t>> splits;
};

double difference(const at::Tensor& a, const at::Tensor& b) {
  const double largest = b.abs().max().item<double>();
  const double off = (a - b).abs().max().item<double>();
  return off == 0 ? 0 : off / largest;
}

/// What one process gets for the whole batch, by plain torch.
std::map<std::string, at::Tensor> reference(Odd& model, const at::Tensor& x, const at::Tensor& y) {
  for (auto& p : model->parameters()) p.mutable_grad() = at::Tensor();
  const nn::Loss loss = model->loss(x, y);
  (loss.sum / loss.weight).backward();
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : model->named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

void expect_same_gradients(const std::map<std::string, at::Tensor>& expected, const Odd& model) {
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& wanted = expected.at(item.key());
    const at::Tensor& got = item.value().grad();
    ASSERT_EQ(wanted.defined(), got.defined()) << item.key();
    if (wanted.defined()) {
      EXPECT_LE(difference(got, wanted), kSameGradient) << item.key();
    }
  }
}

void run_case(const RandomCase& c) {
  run_world(kThreads, c.ranks, [&](const Communicator& world) {
    Odd model(c.shape), alone(c.shape);
    DataParallel replicas(*model, world, {.buckets = c.sizes});
    torch::optim::SGD mine(model->parameters(), 0.1), theirs(alone->parameters(), 0.1);
    for (std::size_t step = 0; step < c.inputs.size(); ++step) {
      SCOPED_TRACE(fmt::format("step {} of {} ranks, {} micros", step, c.ranks, c.micros));
      for (int micro = 0; micro < c.micros; ++micro) {
        const auto part = static_cast<std::size_t>(world.rank() * c.micros + micro);
        const int64_t begin = c.splits[step][part], end = c.splits[step][part + 1];
        const nn::Loss loss =
            model->loss(c.inputs[step].slice(0, begin, end), c.labels[step].slice(0, begin, end));
        replicas.backward(loss, micro + 1 < c.micros ? Micro::More : Micro::Last);
      }
      replicas.finish();
      expect_same_gradients(reference(alone, c.inputs[step], c.labels[step]), model);
      mine.step();
      theirs.step();
      mine.zero_grad();
    }
    for (const auto& item : alone->named_parameters())
      EXPECT_LE(difference(model->named_parameters()[item.key()], item.value()), kSameGradient);
  });
}

TEST(Gradients, OfThreeHundredRandomSplitsEqualOneProcess) {
  for (unsigned seed = 0; seed < 300 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    run_case(RandomCase(seed));
  }
}

TEST(Gradients, EqualOneProcessOnEveryBackend) {
  for (const BackendUnderTest& backend : all_backends()) {
    const RandomCase c(1000);
    run_world(backend, 3, [&](const Communicator& world) {
      Odd model(c.shape), alone(c.shape);
      DataParallel replicas(*model, world, {.buckets = c.sizes});
      for (std::size_t step = 0; step < c.inputs.size(); ++step) {
        // Rank 1 has nothing, and says only that it is done.
        const int64_t rows = c.inputs[step].size(0), half = rows / 2;
        if (world.rank() != 1) {
          const int64_t begin = world.rank() == 0 ? 0 : half, end = world.rank() == 0 ? half : rows;
          replicas.backward(model->loss(c.inputs[step].slice(0, begin, end),
                                        c.labels[step].slice(0, begin, end)));
        }
        replicas.finish();
        expect_same_gradients(reference(alone, c.inputs[step], c.labels[step]), model);
      }
    });
  }
}

TEST(Gradients, ValuesGivenToFinishAreSummedWithTheWeight) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    torch::nn::Linear model(2, 1);
    DataParallel replicas(*model, world);
    const auto x = torch::ones({world.rank() + 1, 2});
    replicas.backward({model(x).sum(), at::tensor(world.rank() + 1.0, at::kDouble)});
    const double values[] = {world.rank() * 10.0, 1};
    const auto totals = replicas.finish({.values = values});
    EXPECT_EQ(totals.weight, 6);
    EXPECT_EQ(totals.sums, (std::vector<double>{30, 3}));
    EXPECT_EQ(model->weight.grad()[0][0].item<float>(), 1);
  });
}

TEST(Gradients, AreReducedWhileBackwardRunsOnceTheirOrderIsKnown) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    DataParallel replicas(*model, world, {.buckets = {.first_bytes = 1, .bytes = 1}});
    const auto backward = [&](Micro micro) {
      replicas.backward({model->forward(torch::ones({2, 4})).sum(), at::tensor(2.0, at::kDouble)},
                        micro);
      return replicas.gradients().num_begun();
    };
    EXPECT_EQ(backward(Micro::Last), 0u) << "the first step observes";
    replicas.finish();
    EXPECT_EQ(backward(Micro::More), 0u) << "accumulating only";
    EXPECT_EQ(backward(Micro::Last), 4u) << "a bucket for each parameter, all on their way";
    replicas.finish();
  });
}

TEST(Gradients, OfAStepInWhichNothingCountsAreNone) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::Linear model(2, 3);
    DataParallel replicas(*model, world);
    replicas.backward(nn::cross_entropy(model(torch::ones({4, 2})),
                                        torch::full({4}, nn::kIgnored, torch::kLong)));
    EXPECT_EQ(replicas.finish().weight, 0);
    EXPECT_FALSE(model->weight.grad().defined());
  });
}

TEST(Gradients, ComeAsSumsWhereTheOptimizerDivides) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::Linear model(2, 1);
    DataParallel replicas(*model, world);
    replicas.backward({model(torch::ones({3, 2})).sum(), at::tensor(3.0, at::kDouble)});
    EXPECT_EQ(replicas.finish({.divide = parallel::Divide::Later}).weight, 6);
    EXPECT_EQ(model->bias.grad().item<float>(), 6);
  });
}

/// Layers whose weight is shared between two that are recomputed: backward fires for it twice.
struct TwiceImpl : nn::LayerImpl {
  explicit TwiceImpl(const at::Tensor& shared) : weight(tied("weight", shared)) {}
  at::Tensor compute(const at::Tensor& x, const nn::Where*) override {
    return torch::tanh(torch::matmul(x, weight));
  }
  using LayerImpl::compute;
  at::Tensor weight;
};

TEST(Gradients, OfAWeightSharedByRecomputedLayersAreWhole) {
  torch::manual_seed(3);
  const auto begin = torch::randn({4, 4}, torch::kDouble);
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto make = [&] {
      const auto shared = begin.clone().requires_grad_();
      return nn::Sequential(std::vector<std::shared_ptr<nn::LayerImpl>>{
          std::make_shared<TwiceImpl>(shared), std::make_shared<TwiceImpl>(shared)});
    };
    auto model = make(), alone = make();
    DataParallel replicas(*model, world, {.buckets = {.first_bytes = 1, .bytes = 1}});
    for (const auto& layer : model->layers()) nn::recompute(*layer);
    const auto x = torch::arange(24, torch::kDouble).view({6, 4}) / 24;
    for (int step = 0; step < 3; ++step) {
      const auto mine = x.slice(0, world.rank() * 2, world.rank() == 0 ? 2 : 6);
      const auto y = model->forward(mine);
      replicas.backward({y.pow(2).sum(), at::tensor(double(mine.size(0)), at::kDouble)});
      replicas.finish();
      alone->zero_grad();
      (alone->forward(x).pow(2).sum() / 6).backward();
      EXPECT_LE(difference(model->parameters()[0].grad(), alone->parameters()[0].grad()),
                kSameGradient);
    }
  });
}

}  // namespace
}  // namespace trireme::test
