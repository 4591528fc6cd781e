// Compressed gradients: what changes nothing changes nothing, what is not sent is not lost, and all
// ranks get the same bits, on every mesh.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <mutex>

#include "support/cuts.h"
#include "support/scratch.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/core/error.h"
#include "trireme/parallel/compressed_reducer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/train/reducer_state.h"

namespace trireme::test::compressed {
namespace {

using comm::Communicator;
using config::Compression;
using ::testing::HasSubstr;

/// A compressor of one's own that loses nothing.
class Copying final : public compress::Compressor {
 public:
  std::string_view name() const override { return "copying"; }
  at::Tensor encode(const at::Tensor& block, const compress::BlockPlace&) const override {
    return block.view(at::kByte).clone();
  }
  void decode(const at::Tensor& bytes, const at::Tensor& block) const override {
    block.view(at::kByte).copy_(bytes);
  }
};

struct Keys {
  Compression kind = Compression::None;
  double ratio = 0.1;
  std::function<void(config::Config&)> change = [](config::Config&) {};
};

config::Config config_for(const Case& c, const Keys& keys) {
  config::Config config = config_of(c);
  config.compress.kind = keys.kind;
  config.compress.ratio = keys.ratio;
  config.compress.rank = 2;
  config.comm.bucket_mib = 0.01;  // several buckets
  keys.change(config);
  return config;
}

/// A trainer that steps through the samples of a case.
struct Training {
  Training(const Case& of, const Keys& keys, const Communicator& world, int64_t steps = 8,
           std::shared_ptr<parallel::Reducer> reducer = nullptr)
      : config(config_for(of, keys)),
        mesh(world, degrees_of(of)),
        trainer(config, mesh,
                train::build([&](const Mesh& on) { return models::make_model(config, on); }, mesh),
                steps, {.reducer = std::move(reducer)}),
        data(of),
        order(3, data.size(), of.batch) {
    at::set_num_threads(1);
  }
  double step(int64_t number) {
    const Communicator ranks = mesh.samples();
    return trainer
        .step(number, data::Loader::read(data, order, ranks.rank(), ranks.size(), number - 1))
        .loss;
  }
  std::vector<double> steps(int64_t from, int64_t until) {
    std::vector<double> losses;
    for (int64_t number = from; number <= until; ++number) losses.push_back(step(number));
    return losses;
  }

  config::Config config;
  Mesh mesh;
  train::Trainer trainer;
  Labelled data;
  data::Order order;
};

std::vector<double> losses_of(const Case& c, const Keys& keys, int64_t steps = 4) {
  std::vector<double> losses;
  run_world(kThreads, degrees_of(c).world(), [&](const Communicator& world) {
    Training run(c, keys, world);
    const auto mine = run.steps(1, steps);
    run.trainer.check_same();
    if (world.rank() == 0) losses = mine;
  });
  return losses;
}

std::vector<Case> meshes(config::Dtype dtype) {
  using enum config::ShardedState;
  std::vector<Case> all = {{.replica = 2},
                           {.replica = 3},
                           {.shard = 2, .what = Optimizer},
                           {.replica = 2, .shard = 2, .what = Gradients},
                           {.shard = 2, .what = Parameters},
                           {.replica = 2, .tensor = 2, .kv_heads = 1},
                           {.replica = 2, .pipe = 2}};
  for (Case& one : all) {
    one.dtype = dtype;
    one.masked = true;
    one.layers = 2;
  }
  return all;
}

TEST(Compression, ThatSendsEverythingChangesNothingToTheBit) {
  for (const auto dtype : {config::Dtype::Float64, config::Dtype::Float32})
    for (const Case& c : meshes(dtype)) {
      SCOPED_TRACE(describe(c));
      const auto plain = losses_of(c, {});
      EXPECT_EQ(losses_of(c, {Compression::TopK, 1}), plain);
      EXPECT_EQ(losses_of(c, {Compression::RandomK, 1}), plain);
    }
}

TEST(Compression, OfOnesOwnThatCopiesChangesNothing) {
  const Case c{.replica = 3, .dtype = config::Dtype::Float32};
  const auto plain = losses_of(c, {});
  run_world(kThreads, 3, [&](const Communicator& world) {
    const Mesh mesh(world, degrees_of(c));
    Training run(c, {}, world, 8,
                 parallel::make_reducer(mesh, {.own = std::make_shared<Copying>()}));
    EXPECT_EQ(run.steps(1, 4), plain);
  });
}

TEST(Compression, OfEveryKindGivesTheSameBitsOnAllRanksAndInEveryRun) {
  using enum Compression;
  for (const auto dtype : {config::Dtype::Float64, config::Dtype::Float32})
    for (const Case& c : meshes(dtype)) {
      const auto plain = losses_of(c, {});
      for (const Compression kind : {Fp16, Bf16, Int8, OneBit, TopK, RandomK, PowerSgd}) {
        SCOPED_TRACE(fmt::format("{} {}", describe(c), to_string(kind)));
        const auto losses = losses_of(c, {kind});  // with a check that all ranks have the same
        EXPECT_EQ(losses, losses_of(c, {kind}));
        EXPECT_EQ(losses[0], plain[0]) << "the first loss is of the first weights";
        EXPECT_NE(losses[3], plain[3]) << "something was compressed";
        EXPECT_NEAR(losses[3], plain[3], 0.15);
      }
    }
}

TEST(Compression, WaitsForTheWarmUpAndLeavesOutWhatIsKept) {
  for (const Case& c : {Case{.replica = 2}, Case{.shard = 2}}) {
    const auto plain = losses_of(c, {});
    const auto late =
        losses_of(c, {Compression::TopK, 0.1, [](auto& config) { config.compress.warmup = 2; }});
    EXPECT_EQ(std::vector(late.begin(), late.begin() + 3),
              std::vector(plain.begin(), plain.begin() + 3));
    EXPECT_NE(late[3], plain[3]);
    const auto kept =
        losses_of(c, {Compression::TopK, 0.1, [](auto& config) { config.compress.keep = {"*"}; }});
    EXPECT_EQ(kept, plain);
    const auto some = losses_of(
        c, {Compression::TopK, 0.1, [](auto& config) { config.compress.keep = {"*.weight"}; }});
    EXPECT_NE(some[3], plain[3]);
    EXPECT_NE(some[3], losses_of(c, {Compression::TopK, 0.1})[3]);
  }
}

TEST(Compression, OfSeveralSetsOfRanksDoesNotMakeThemWaitForEachOther) {
  // Gradients that travel in bfloat16 are waited for while backward runs, in several lanes.
  const Case c{.replica = 2, .tensor = 2, .kv_heads = 1, .dtype = config::Dtype::Float32};
  for (const Compression kind : {Compression::Int8, Compression::PowerSgd}) {
    const Keys keys{kind, 0.1, [](config::Config& config) {
                      config.precision.reduce = config::Dtype::BFloat16;
                      config.comm.bucket_mib = 0.002;
                    }};
    const auto losses = losses_of(c, keys, 8);
    EXPECT_EQ(losses, losses_of(c, keys, 8));
    EXPECT_LT(losses[7], losses[0]);
  }
}

TEST(Compression, AutoAgreesAndTrains) {
  const Case c{.replica = 2, .dtype = config::Dtype::Float32};
  EXPECT_NEAR(losses_of(c, {Compression::Auto})[3], losses_of(c, {})[3], 1e-2);
}

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

/// Saves the state of a run after a step; loads it into another one.
void save(Training& run, const std::string& folder, int64_t step) {
  checkpoint::Saver saver(folder, run.mesh, 1);
  saver.save(step, run.trainer.state());
  EXPECT_EQ(saver.wait(), std::nullopt);
  run.mesh.world().barrier();
}

void load(Training& run, const std::string& folder) {
  auto saved = checkpoint::load_newest(
      folder, run.mesh.world(),
      [&, own = run.trainer.own_state()](format::Checkpoint& one) { run.trainer.load(one, own); });
  run.trainer.restore();
  train::restore_reducer(run.trainer.attached(), *saved);
}

TEST(Compression, OfEveryKindContinuesToTheBit) {
  using enum Compression;
  auto all = meshes(config::Dtype::Float32);
  all.push_back({.replica = 2, .dtype = config::Dtype::Float16});
  for (const Case& c : all)
    for (const Compression kind : {Fp16, Bf16, Int8, OneBit, TopK, RandomK, PowerSgd, Auto}) {
      SCOPED_TRACE(fmt::format("{} {}", describe(c), to_string(kind)));
      // `auto` measures after the first update, which the overflows put off beyond the checkpoint.
      if (kind == Auto && c.dtype == config::Dtype::Float16) continue;
      const Scratch scratch;
      const Keys keys{kind, 0.1, [&](config::Config& config) {
                        if (c.dtype != config::Dtype::Float16) return;
                        config.precision.reduce = config::Dtype::Float32;
                        config.precision.loss_scale = 0x1p20;  // some steps overflow
                        config.precision.growth = 2;
                      }};
      run_world(kThreads, degrees_of(c).world(), [&](const Communicator& world) {
        Training whole(c, keys, world);
        whole.steps(1, 3);
        save(whole, scratch / "run", 3);
        Training resumed(c, keys, world);
        load(resumed, scratch / "run");
        EXPECT_EQ(whole.steps(4, 6), resumed.steps(4, 6));
      });
    }
}

/// The residuals of all ranks, added up in whole parameters.
using Whole = std::map<std::string, at::Tensor>;

void add_residuals(Whole& to, parallel::Attached& attached) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const auto& one : attached.reducer().states()) {
    if (!one.piece || one.repeats) continue;
    at::Tensor& whole = to[one.parameter];
    if (!whole.defined()) whole = torch::zeros(one.piece->whole, torch::kDouble);
    const at::Tensor box = nn::box_of(whole, {one.piece->offset, one.piece->shape});
    const at::Tensor flat = box.reshape({-1}).clone();
    flat.narrow(0, one.piece->begin, one.piece->count).add_(one.tensor.reshape({-1}));
    box.copy_(flat.view(box.sizes()));
  }
}

TEST(Residuals, KeepTheirSumOverRanksFromMeshToMesh) {
  using enum config::ShardedState;
  const std::vector<Case> all = {{.replica = 2},
                                 {.replica = 2, .shard = 2, .what = Gradients},
                                 {.replica = 2, .tensor = 2},
                                 {.replica = 2, .tie = true, .pipe = 2}};
  for (const Case& from : all) {
    const Scratch scratch;
    Whole saved;
    run_world(kThreads, degrees_of(from).world(), [&](const Communicator& world) {
      Training run(from, {Compression::TopK, 0.1}, world);
      run.steps(1, 2);
      add_residuals(saved, run.trainer.attached());
      save(run, scratch / "run", 2);
    });
    for (const Case& to : all) {
      SCOPED_TRACE(describe(from) + " to " + describe(to));
      Whole loaded;
      run_world(kThreads, degrees_of(to).world(), [&](const Communicator& world) {
        Training run(to, {Compression::TopK, 0.1}, world);
        load(run, scratch / "run");
        add_residuals(loaded, run.trainer.attached());
        run.step(3);
        run.trainer.check_same();
      });
      for (const auto& [name, whole] : saved) {
        const double most = whole.abs().max().item<double>();
        ASSERT_TRUE(loaded.contains(name)) << name;
        EXPECT_LE((whole - loaded.at(name)).abs().max().item<double>(), 1e-12 * most) << name;
      }
      EXPECT_GT(saved.begin()->second.abs().max().item<double>(), 0);
    }
  }
}

}  // namespace
}  // namespace trireme::test::compressed
