// Batch norm over several ranks is that of one module that sees all samples.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <ATen/CPUGeneratorImpl.h>

#include <numeric>

#include "support/backends.h"
#include "support/sentence.h"
#include "trireme/core/error.h"
#include "trireme/nn/batch_norm.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test {
namespace {

using comm::Communicator;

constexpr double kSame = 1e-12;  // of numbers near 1, in float64

/// What a batch norm gives: its output, gradients and buffers.
struct Outcome {
  at::Tensor y, dx, dweight, dbias, mean, var, count;
};

/// Some rows for each rank; a rank may have none.
struct Split {
  std::vector<int64_t> rows;
  std::vector<int64_t> shape;  ///< of one row, channels first
  bool channels_last = false;
  int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
};

/// Random numbers that depend on the seed alone.
class Chance {
 public:
  explicit Chance(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}
  Chance(const Chance& from) : generator_(from.generator_.clone()) {}
  int64_t below(int64_t limit) {
    return at::randint(limit, {1}, generator_, at::kLong).item<int64_t>();
  }
  at::Tensor normal(at::IntArrayRef shape) { return at::randn(shape, generator_, at::kDouble); }

 private:
  at::Generator generator_;
};

Split random_split(Chance& chance, int ranks) {
  Split split;
  const int64_t channels = 1 + chance.below(5);
  switch (chance.below(4)) {
    case 0: split.shape = {channels}; break;
    case 1: split.shape = {channels, 1 + chance.below(9)}; break;
    case 2: split.shape = {channels, 1 + chance.below(6), 1 + chance.below(40)}; break;
    default: split.shape = {channels, 2, 3, 1 + chance.below(3)};
  }
  split.channels_last = split.shape.size() == 3 && chance.below(2) == 1;
  do {
    split.rows.clear();
    for (int rank = 0; rank < ranks; ++rank)
      split.rows.push_back(chance.below(3) == 0 ? 0 : chance.below(7));
  } while (split.total() < 2);
  return split;
}

/// Has a rank a single value of each channel?
bool has_single_value(const Split& split) {
  const auto pixels = std::accumulate(split.shape.begin() + 1, split.shape.end(), int64_t{1},
                                      std::multiplies());
  return std::ranges::any_of(split.rows, [&](int64_t rows) { return rows * pixels == 1; });
}

/// Values far from 0, whose squares would cancel.
at::Tensor rows_of(Chance& chance, const Split& split) {
  std::vector<int64_t> shape = split.shape;
  shape.insert(shape.begin(), split.total());
  at::Tensor x = chance.normal(shape) + 3;
  return split.channels_last ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

template <class Norm>
void set_parameters(Norm& norm, Chance& chance) {
  const at::NoGradGuard guard;
  norm->to(torch::kDouble);
  norm->weight.copy_(chance.normal(norm->weight.sizes()) + 1);
  norm->bias.copy_(chance.normal(norm->bias.sizes()));
}

template <class Norm>
Outcome run_norm(Norm& norm, const at::Tensor& given, const at::Tensor& dy) {
  const at::Tensor x = given.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  const at::Tensor y = norm->forward(x);
  y.backward(dy);
  return {y.detach(),          x.grad(),          norm->weight.grad(),        norm->bias.grad(),
          norm->running_mean,  norm->running_var, norm->num_batches_tracked};
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

/// Compares a rank's rows, and what all ranks have together.
void expect_same(const Outcome& mine, const Outcome& whole, const Communicator& world,
                 int64_t begin, int64_t count) {
  EXPECT_LE(apart(mine.y, whole.y.narrow(0, begin, count)), kSame);
  EXPECT_LE(apart(mine.dx, whole.dx.narrow(0, begin, count)), kSame);
  const double scale = std::max(1.0, whole.dweight.abs().max().item<double>());
  at::Tensor sums = at::stack({mine.dweight, mine.dbias});
  world.all_reduce(sums).wait();
  EXPECT_LE(apart(sums[0], whole.dweight) / scale, kSame);
  EXPECT_LE(apart(sums[1], whole.dbias) / scale, kSame);
  EXPECT_LE(apart(mine.mean, whole.mean), kSame);
  EXPECT_LE(apart(mine.var, whole.var), kSame);
  EXPECT_TRUE(mine.count.equal(whole.count));
}

/// A torch module of the kind that these rows need.
template <class Body>
void with_torch_norm(const Split& split, Body body) {
  const int64_t channels = split.shape[0];
  if (split.shape.size() <= 2) {
    torch::nn::BatchNorm1d whole(channels), mine(channels);
    body(whole, mine);
  } else if (split.shape.size() == 3) {
    torch::nn::BatchNorm2d whole(channels), mine(channels);
    body(whole, mine);
  } else {
    torch::nn::BatchNorm3d whole(channels), mine(channels);
    body(whole, mine);
  }
}

TEST(BatchNorm, Of200RandomSplitsIsThatOfTheWholeBatch) {
  constexpr int kMeshes = 5, kSplits = 40;
  for (int ranks = 1; ranks <= kMeshes; ++ranks) {
    run_world(kThreads, ranks, [&](const Communicator& world) {
      at::set_num_threads(1);
      const Mesh mesh(world, {.replica = ranks});
      for (int i = 0; i < kSplits; ++i) {
        Chance chance(static_cast<uint64_t>(1000 * ranks + i));
        const Split split = random_split(chance, ranks);
        const at::Tensor x = rows_of(chance, split), dy = chance.normal(x.sizes());
        const auto before = split.rows.begin() + world.rank();
        const int64_t begin = std::accumulate(split.rows.begin(), before, int64_t{0});
        const int64_t count = *before;
        with_torch_norm(split, [&](auto& whole, auto& mine) {
          Chance same = chance, again = chance;
          set_parameters(whole, same);
          set_parameters(mine, again);
          const Outcome expected = run_norm(whole, x, dy);
          if (!has_single_value(split)) {  // torch's own modules refuse it
            nn::convert_sync_batch_norm(*mine, mesh);
            expect_same(run_norm(mine, x.narrow(0, begin, count), dy.narrow(0, begin, count)),
                        expected, world, begin, count);
          }
          nn::BatchNorm ours(split.shape[0]);
          nn::initialize(*ours, 1);
          Chance third = chance;
          set_parameters(ours, third);
          nn::attach_batch_norms(*ours, mesh);
          expect_same(run_norm(ours, x.narrow(0, begin, count), dy.narrow(0, begin, count)),
                      expected, world, begin, count);
        });
        if (::testing::Test::HasFailure())
          FAIL() << "split " << i << " over " << ranks << " ranks: " << ::testing::PrintToString(split.rows)
                 << " rows of " << ::testing::PrintToString(split.shape);
      }
    });
  }
}

TEST(BatchNorm, AddsAndCutsOffInTheSamePass) {
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      Chance chance(7);
      nn::BatchNorm ours(6, nn::BatchNormImpl::Options{.relu = true});
      nn::initialize(*ours, 1);
      set_parameters(ours, chance);
      torch::nn::BatchNorm2d theirs(6);
      theirs->to(torch::kDouble);
      const auto given = [&] { return chance.normal({5, 6, 7, 9}).to(dtype).contiguous(format); };
      const at::Tensor x = given(), r = given(), dy = given();
      {
        const at::NoGradGuard guard;
        theirs->weight.copy_(ours->weight);
        theirs->bias.copy_(ours->bias);
      }
      ours->to(dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
      const at::Tensor own[] = {x.clone().requires_grad_(), r.clone().requires_grad_()};
      const at::Tensor exact[] = {x.to(torch::kDouble).requires_grad_(),
                                  r.to(torch::kDouble).requires_grad_()};
      const at::Tensor y = ours->forward(nn::Flow({own[0], own[1]}, nullptr)).x();
      const at::Tensor z = (theirs->forward(exact[0]) + exact[1]).relu();
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_TRUE(y.is_contiguous(format) || dtype == torch::kBFloat16);
      y.backward(dy);
      z.backward(dy.to(torch::kDouble));
      const double close = dtype == torch::kDouble ? kSame : dtype == torch::kFloat ? 1e-4 : 0.2;
      EXPECT_LE(apart(y.to(torch::kDouble), z), close);
      for (int i = 0; i < 2; ++i)
        EXPECT_LE(apart(own[i].grad().to(torch::kDouble), exact[i].grad()), close) << i;
      EXPECT_LE(apart(ours->weight.grad().to(torch::kDouble), theirs->weight.grad()), 20 * close);
      EXPECT_LE(apart(ours->bias.grad().to(torch::kDouble), theirs->bias.grad()), 20 * close);
    }
  }
}

/// A model as a user writes it: typed members, one in a Sequential, and one in a child.
struct OwnImpl : torch::nn::Module {
  OwnImpl() {
    first = register_module("first", torch::nn::BatchNorm2d(3));
    more = register_module(
        "more", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)),
                                      torch::nn::BatchNorm2d(4), torch::nn::ReLU()));
    last = register_module("last", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(more->forward(first->forward(x)).mean({2, 3}));
  }
  torch::nn::BatchNorm2d first{nullptr};
  torch::nn::Sequential more{nullptr};
  torch::nn::BatchNorm1d last{nullptr};
};
TORCH_MODULE(Own);

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> made;
  for (const at::Tensor& one : all) made.push_back(one.detach().clone());
  return made;
}

TEST(ConvertSyncBatchNorm, ChangesNoModuleAndGivesTheNumbersOfOneRank) {
  run_world(kThreads, 3, [](const Communicator& world) {
    at::set_num_threads(1);
    const Mesh mesh(world, {.replica = 3});
    Chance chance(5);
    const at::Tensor x = chance.normal({7, 3, 5, 5}), y = chance.normal({7, 4});
    const std::vector<int64_t> rows = {4, 0, 3};
    Own alone, mine;
    alone->to(torch::kDouble);
    mine->to(torch::kDouble);
    {
      const at::NoGradGuard guard;
      const auto from = alone->parameters(), to = mine->parameters();
      for (std::size_t i = 0; i < to.size(); ++i) {
        from[i].copy_(chance.normal(from[i].sizes()) + 0.5);
        to[i].copy_(from[i]);
      }
    }
    const auto names = mine->named_buffers().keys();
    const auto tensors = mine->buffers();
    nn::convert_sync_batch_norm(*mine, mesh);
    EXPECT_EQ(mine->named_buffers().keys(), names);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(mine->buffers()[i].is_same(tensors[i]));
    parallel::DataParallel replicas(*mine, mesh);
    const int64_t begin = world.rank() == 2 ? 4 : 0;
    const int64_t count = rows[static_cast<std::size_t>(world.rank())];
    torch::optim::SGD one(alone->parameters(), 0.1), three(mine->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      one.zero_grad();
      ((alone->forward(x) - y).pow(2).sum() / 7).backward();
      one.step();
      const auto errors =
          (mine->forward(x.narrow(0, begin, count)) - y.narrow(0, begin, count)).pow(2);
      replicas.backward({errors.sum(), count});
      replicas.finish();
      three.step();
    }
    const auto a = alone->parameters(), b = mine->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LE(apart(a[i], b[i]), 1e-11) << i;
    const auto c = alone->buffers(), d = mine->buffers();
    for (std::size_t i = 0; i < c.size(); ++i)
      EXPECT_LE(apart(c[i].to(torch::kDouble), d[i].to(torch::kDouble)), 1e-11) << names[i];
    mine->eval();
    alone->eval();
    EXPECT_LE(apart(mine->forward(x), alone->forward(x)), 1e-11);
  });
}

TEST(ConvertSyncBatchNorm, StaysWhenTheModelMoves) {
  const Mesh mesh = mesh_of_one();
  torch::nn::BatchNorm2d norm(2);
  nn::convert_sync_batch_norm(*norm, mesh);
  norm->to(torch::kDouble);
  const parallel::DataParallel attached(*norm, mesh);
  const at::Tensor x = torch::randn({3, 2, 4, 4}, torch::kDouble);
  for (int i = 0; i < 2; ++i) norm->forward(x);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1) << "two calls of one mini-batch";
}

TEST(ConvertSyncBatchNorm, RefusesWhatItCannotRecognize) {
  torch::nn::Sequential model(torch::nn::BatchNorm2d(
      torch::nn::BatchNorm2dOptions(3).affine(false).track_running_stats(false)));
  EXPECT_EQ(sentence_of<MisuseError>([&] { nn::convert_sync_batch_norm(*model, mesh_of_one()); }),
            "convert_sync_batch_norm: '0' has neither weights nor running statistics, so that its "
            "calls cannot be told from others; give it affine(true)");
}

TEST(BatchNorm, NormalizesMicroBatchesByThemselvesAndTracksTheWholeMiniBatch) {
  run_world(kThreads, 2, [](const Communicator& world) {
    const Mesh mesh(world, {.replica = 2});
    Chance chance(11);
    const at::Tensor x = chance.normal({10, 3, 4, 4});
    // Of each micro-batch, the rows of rank 0 and those of rank 1.
    const std::vector<std::vector<std::pair<int64_t, int64_t>>> micros = {
        {{0, 2}, {5, 3}}, {{2, 3}, {8, 0}}, {{5, 0}, {8, 2}}};
    torch::nn::BatchNorm2d norm(3), whole(3);
    norm->to(torch::kDouble);
    whole->to(torch::kDouble);
    nn::convert_sync_batch_norm(*norm, mesh);
    parallel::DataParallel replicas(*norm, mesh);
    for (int step = 1; step <= 2; ++step) {
      for (std::size_t i = 0; i < micros.size(); ++i) {
        std::vector<at::Tensor> parts;
        for (const auto& [begin, count] : micros[i]) parts.push_back(x.narrow(0, begin, count));
        torch::nn::BatchNorm2d of_micro(3);
        of_micro->to(torch::kDouble);
        const at::Tensor expected =
            of_micro->forward(at::cat(parts))
                .narrow(0, world.rank() == 0 ? 0 : parts[0].size(0),
                        parts[static_cast<std::size_t>(world.rank())].size(0));
        const at::Tensor y = norm->forward(parts[static_cast<std::size_t>(world.rank())]);
        EXPECT_LE(apart(y, expected), kSame);
        replicas.backward({y.sum(), y.size(0)},
                          i + 1 < micros.size() ? parallel::Micro::More : parallel::Micro::Last);
      }
      replicas.finish();
      whole->forward(x);
      EXPECT_LE(apart(norm->running_mean, whole->running_mean), kSame);
      EXPECT_LE(apart(norm->running_var, whole->running_var), kSame);
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), step);
    }
  });
}

/// A layer with a torch batch norm inside, to be recomputed.
struct WrappedImpl : nn::LayerImpl {
  explicit WrappedImpl(bool of_torch) : is_torch(of_torch) {
    if (is_torch)
      theirs = register_module("norm", torch::nn::BatchNorm2d(3));
    else
      ours = register_module("norm", nn::BatchNorm(3));
  }
  at::Tensor compute(const at::Tensor& x, const nn::Where*) override {
    return is_torch ? theirs->forward(x) : ours->forward(x);
  }
  using LayerImpl::compute;
  bool is_torch;
  torch::nn::BatchNorm2d theirs{nullptr};
  nn::BatchNorm ours{nullptr};
};

TEST(BatchNorm, CountsAMicroBatchOnceIfItIsRecomputed) {
  for (const bool of_torch : {false, true}) {
    const auto run = [&](bool recomputes) {
      auto layer = std::make_shared<WrappedImpl>(of_torch);
      nn::initialize(*layer, 1);
      layer->to(torch::kDouble);
      if (of_torch) nn::convert_sync_batch_norm(*layer, mesh_of_one());
      parallel::DataParallel attached(*layer, mesh_of_one());
      if (recomputes) nn::recompute(*layer);
      Chance chance(3);
      for (int micro = 0; micro < 2; ++micro) {
        const at::Tensor x = chance.normal({4, 3, 2, 2}).requires_grad_();
        attached.backward({layer->forward(nn::Flow(x)).x().pow(3).sum(), 4},
                          micro == 0 ? parallel::Micro::More : parallel::Micro::Last);
      }
      attached.finish();
      auto all = copies(layer->buffers());
      for (const at::Tensor& one : layer->parameters()) all.push_back(one.grad().clone());
      return all;
    };
    const auto plain = run(false), again = run(true);
    ASSERT_EQ(plain.size(), again.size());
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(again[i])) << i;
    const at::Tensor& count = plain[2];  // after running_mean and running_var
    EXPECT_EQ(count.item<double>(), 1) << "two micro-batches are one mini-batch";
  }
}

TEST(BatchNorm, RefusesASingleValue) {
  nn::BatchNorm norm(2);
  nn::initialize(*norm, 1);
  EXPECT_EQ(sentence_of<MisuseError>([&] { norm->forward(torch::ones({1, 2, 1, 1})); }),
            "batch norm: all ranks together have 1 value of each channel, which has no variance; "
            "use larger micro-batches");
}

}  // namespace
}  // namespace trireme::test
