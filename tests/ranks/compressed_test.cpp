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
                           {.replica = 2, .tensor = 2, .sequence = false},
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
      if (dtype == config::Dtype::Float64 && c.tensor * c.pipe > 1) continue;
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
  // Several lanes, whose blocks ranks may start in different orders.
  for (const Case& c :
       {Case{.replica = 2, .dtype = config::Dtype::Float32},
        Case{
            .replica = 2, .shard = 2, .tensor = 2, .kv_heads = 1, .dtype = config::Dtype::Float32}})
    EXPECT_NEAR(losses_of(c, {Compression::Auto})[3], losses_of(c, {})[3], 1e-2);
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
  int pair = 0;
  for (const Case& c : all)
    for (const Compression kind : {Fp16, Bf16, Int8, OneBit, TopK, RandomK, PowerSgd, Auto, Auto}) {
      // Every second pair: each kind on half of the meshes, each mesh with half of the kinds.
      if (++pair % 2 == 0) continue;
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
