// One reducer that compresses, without a model: what is not sent is kept, and nothing else changes.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/backends.h"
#include "trireme/core/error.h"
#include "trireme/nn/layer.h"
#include "trireme/parallel/compressed_reducer.h"
#include "trireme/parallel/fully_sharded.h"

namespace trireme::test::residuals {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;

/// A gradient of 40 x 24 and one of 24 elements, which one reducer sums over all ranks.
struct Summing {
  Summing(const Communicator& ranks, const parallel::CompressOptions& options)
      : world(ranks), mesh(ranks, {.replica = ranks.size()}) {
    reducer = parallel::make_reducer(mesh, options);
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{40, 24}, {24}}) {
      parallel::GradientPlace place{
          .name = shape.size() == 2 ? "weight" : "bias",
          .shape = shape,
          .pieces = {{.name = "", .whole = shape, .offset = {0}, .shape = shape}},
          .dtype = core::DType::Float64};
      places.push_back(std::make_shared<parallel::GradientPlace>(place));
    }
    over = {.axes = {Axis::Replica}};
    reducer->announce(places, over, 0);
  }
  static constexpr int64_t kElements = 41 * 24;

  at::Tensor own(int64_t step) const {
    return torch::sin(torch::arange(kElements, torch::kDouble) * (1.3 + world.rank()) + step);
  }
  at::Tensor sum(const at::Tensor& gradients) {
    at::Tensor data = gradients.clone();
    reducer->start({.data = data, .members = {{places[0], 0}, {places[1], 40 * 24}}}, over).wait();
    return data;
  }
  at::Tensor over_ranks(at::Tensor one) const {
    world.all_reduce(one).wait();
    return one;
  }
  /// What all ranks have not sent yet.
  at::Tensor residuals() {
    at::Tensor all = torch::zeros({kElements}, torch::kDouble);
    for (const auto& one : reducer->states())
      if (one.kind == "residual")
        all.narrow(0, one.parameter == "weight" ? 0 : 40 * 24, one.tensor.numel())
            .copy_(one.tensor.reshape({-1}));
    return over_ranks(all);
  }

  Communicator world;
  Mesh mesh;
  std::shared_ptr<parallel::Reducer> reducer;
  std::vector<parallel::GradientPlacePtr> places;
  RankSet over;
};

std::vector<parallel::CompressOptions> all_kinds() {
  using enum parallel::Compression;
  std::vector<parallel::CompressOptions> all;
  for (const auto kind : {Fp16, Bf16, Int8, OneBit, TopK, RandomK, PowerSgd})
    all.push_back({.kind = kind, .ratio = 0.05, .rank = 2});
  return all;
}

TEST(Residuals, HoldAllThatWasNotSent) {
  for (const auto& options : all_kinds())
    run_world(kThreads, 3, [&](const Communicator& world) {
      SCOPED_TRACE(to_string(options.kind));
      Summing summing(world, options);
      at::Tensor before = torch::zeros({Summing::kElements}, torch::kDouble);
      double unit = 1;
      for (int64_t step = 0; step < 6; ++step) {
        const double weight = step % 2 == 0 ? 30 : 17, scale = step < 3 ? 1 : 4;
        summing.reducer->expect({.weight = [&] { return weight; }, .loss_scale = scale});
        const at::Tensor mine = summing.own(step) * weight * scale;
        const at::Tensor got = summing.sum(mine);
        summing.reducer->end_step(weight);
        const at::Tensor after = summing.residuals();
        // Old residuals, in this step's unit, and gradients = what was sent, and new residuals.
        const at::Tensor put_in = summing.over_ranks(mine) + before * (weight * scale / unit);
        EXPECT_LE((put_in - got - after).abs().max().item<double>(), 1e-10 * weight * scale);
        EXPECT_GT(after.abs().max().item<double>(), 0);
        before = after;
        unit = weight * scale;
      }
    });
}

TEST(Residuals, AndFactorsAreLeftByAStepThatIsNotMade) {
  for (const auto& options : all_kinds())
    run_world(kThreads, 2, [&](const Communicator& world) {
      SCOPED_TRACE(to_string(options.kind));
      Summing summing(world, options), straight(world, options);
      const auto make = [](Summing& to, int64_t step) {
        const at::Tensor sum = to.sum(to.own(step));
        to.reducer->end_step(1);
        return sum;
      };
      make(summing, 0), make(straight, 0);
      summing.sum(summing.own(7) * std::numeric_limits<double>::infinity());
      summing.reducer->end_step(1);
      summing.reducer->undo_step();  // it was skipped
      summing.sum(summing.own(9) * 0);
      summing.reducer->end_step(0);  // nothing counted
      summing.sum(summing.own(5));
      summing.reducer->drop_step();  // a micro-batch of a step that was given up
      const auto a = summing.reducer->states(), b = straight.reducer->states();
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(torch::equal(a[i].tensor, b[i].tensor));
      EXPECT_TRUE(torch::equal(make(summing, 1), make(straight, 1)));
    });
}

TEST(PowerSgd, IsExactForMatricesOfItsRankAndForSmallTensors) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    Summing summing(world, {.kind = parallel::Compression::PowerSgd, .rank = 4});
    for (int64_t step = 0; step < 3; ++step) {
      at::Tensor mine = summing.own(step).clone();  // rank 2 on each rank
      const auto wave = [&](int64_t n, double by) {
        return torch::sin(torch::arange(n, torch::kDouble).view({n, 1}) *
                              torch::tensor({{by, by + 1}}, torch::kDouble) +
                          static_cast<double>(step + world.rank()));
      };
      mine.narrow(0, 0, 40 * 24).copy_(torch::mm(wave(40, 0.7), wave(24, 1.9).t()).view({-1}));
      const at::Tensor got = summing.sum(mine), wanted = summing.over_ranks(mine.clone());
      summing.reducer->end_step(1);
      EXPECT_LE((got - wanted).abs().max().item<double>(), 1e-9);
      EXPECT_TRUE(torch::equal(got.narrow(0, 40 * 24, 24), wanted.narrow(0, 40 * 24, 24)));
    }
  });
}

TEST(PowerSgd, OfFullRankIsExact) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    // A reducer would send such a matrix as it is: two factors of full rank are larger.
    Summing summing(world, {.kind = parallel::Compression::None});
    const parallel::GradientPlacePtr& place = summing.places[0];
    parallel::LowRankFactors factors(24, 0, 7);
    factors.add(place);
    const parallel::SumContext context{.first = world.split("there", 0, world.rank()),
                                       .second = world.split("back", 0, world.rank())};
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(world.rank()));
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor mine = torch::randn({40, 24}, generator, torch::kDouble);
      const at::Tensor got = mine.view({-1}).clone(), wanted = summing.over_ranks(mine.clone());
      const auto sum =
          parallel::start_low_rank_sum({.data = got, .members = {{place, 0}}}, context, factors);
      sum->start_second();
      sum->finish();
      factors.settle();
      EXPECT_LE((got - wanted.view({-1})).abs().max().item<double>(), 1e-9);
    }
  });
}

/// A module with one layer, the same on all ranks.
struct Net : torch::nn::Module {
  Net() {
    layer = register_module("layer", nn::as_layer(torch::nn::Linear(6, 4)));
    const at::NoGradGuard guard;  // torch's generator is shared by the threads of all ranks
    for (at::Tensor& one : parameters())
      one.copy_(torch::sin(torch::arange(one.numel(), torch::kFloat) * 1.3).view(one.sizes()));
  }
  std::shared_ptr<nn::LayerImpl> layer;
};

TEST(Residuals, AreLeftByAStepWhoseForwardThrew) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    Net model, straight;
    const Mesh mesh(world, {.shard = 2});
    const parallel::FullyShardedOptions options{
        .sharding = Sharding::Gradients,
        .compress = {.kind = parallel::Compression::TopK, .ratio = 0.1}};
    parallel::FullySharded one(model, mesh, options), other(straight, mesh, options);
    const auto backward = [&](auto& to, auto& module, double times, parallel::Micro micro) {
      const at::Tensor rows = torch::sin(torch::arange(12.0) * times + world.rank()).view({2, 6});
      to.backward({module.layer->forward(rows).square().sum(), at::tensor(2.0, at::kDouble)},
                  micro);
    };
    for (const double step : {1.0, 2.0, 3.0}) {
      backward(one, model, 7 + step, parallel::Micro::More);
      one.discard();  // the user's forward threw, on all ranks
      backward(one, model, step, parallel::Micro::Last);
      one.finish();
      backward(other, straight, step, parallel::Micro::Last);
      other.finish();
      const auto a = one.reducer().states(), b = other.reducer().states();
      ASSERT_EQ(a.size(), b.size());
      ASSERT_FALSE(a.empty());
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(torch::equal(a[i].tensor, b[i].tensor)) << step;
    }
  });
}

/// A compressor that fails on one rank.
class Failing final : public compress::Compressor {
 public:
  explicit Failing(bool fails) : fails_(fails) {}
  std::string_view name() const override { return "failing"; }
  at::Tensor encode(const at::Tensor& block, const compress::BlockPlace&) const override {
    core::check(!fails_, "my compressor cannot encode this");
    return block.view(at::kByte).clone();
  }
  void decode(const at::Tensor& bytes, const at::Tensor& block) const override {
    block.view(at::kByte).copy_(bytes);
  }

 private:
  bool fails_;
};

TEST(Compression, ThatThrowsFailsTheSumAndAllLaterOnes) {
  std::vector<std::string> said(2);
  run_world(kThreads, 2, [&](const Communicator& world) {
    std::string& mine = said[static_cast<std::size_t>(world.rank())];
    Summing summing(world, {.own = std::make_shared<Failing>(world.rank() == 1)});
    for (int time = 0; time < 2; ++time) {
      try {
        summing.sum(summing.own(time));
      } catch (const std::exception& error) {
        mine += error.what();
      }
    }
    if (world.rank() == 1) world.abort(mine);
  });
  EXPECT_EQ(said[1], "my compressor cannot encode thismy compressor cannot encode this");
  EXPECT_THAT(said[0], HasSubstr(said[1])) << "the other rank hears of it";
}

TEST(RandomK, WithoutFeedbackIsRightOnAverage) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    Summing summing(world,
                    {.kind = parallel::Compression::RandomK, .ratio = 0.25, .feedback = false});
    const at::Tensor mine = summing.own(1), wanted = summing.over_ranks(mine.clone());
    at::Tensor mean = torch::zeros_like(mine);
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) {
      mean += summing.sum(mine) / kDraws;
      summing.reducer->end_step(1);
    }
    // Each element is 0 or four times itself: its mean is off by sqrt(3 / draws), of which 5.
    EXPECT_LE((mean - wanted).abs().max().item<double>(),
              5 * std::sqrt(3.0 / kDraws) * wanted.abs().max().item<double>());
    EXPECT_TRUE(summing.reducer->states().empty());
  });
}

TEST(Compression, RefusesWhatCannotBeBeforeAnythingRuns) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto said = [&](const parallel::CompressOptions& options) -> std::string {
      try {
        Summing summing(world, options);
      } catch (const std::exception& error) {
        return error.what();
      }
      return "nothing";
    };
    using enum parallel::Compression;
    EXPECT_THAT(said({.kind = TopK, .ratio = 0}), HasSubstr("ratio = 0 must be more than 0"));
    EXPECT_THAT(said({.kind = RandomK, .ratio = 1.5}), HasSubstr("ratio = 1.5 must be"));
    EXPECT_THAT(said({.kind = PowerSgd, .rank = 0}), HasSubstr("rank = 0 of powersgd must be"));
    Summing summing(world, {.kind = Fp16});
    auto counts = *summing.places[1];
    counts.name = "counts";
    counts.dtype = core::DType::Int64;
    try {
      summing.reducer->announce({std::make_shared<parallel::GradientPlace>(counts)}, summing.over,
                                0);
      FAIL() << "an integer buffer was taken";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("'counts' (24 elements) is int64"));
    }
  });
}

}  // namespace
}  // namespace trireme::test::residuals
