// Checkpoints fit any mesh: saved on one, loaded on another, the weights bit for bit.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <span>

#include "models/registry.h"
#include "support/backends.h"
#include "support/scratch.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/data/loader.h"
#include "trireme/data/markov.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

using comm::Communicator;

constexpr double kSameLoss = 1e-10;  // ten losses in float64

struct MeshCase {
  Degrees degrees;
  bool sequence = true;
  config::ShardedState what = config::ShardedState::Parameters;
  std::string schedule = "1f1b";
};
const MeshCase kMeshes[] = {
    {{}},
    {{.replica = 3}},
    {{.tensor = 2}},
    {{.tensor = 4}},
    {{.replica = 2, .tensor = 2}, false},
    {{.shard = 3}},
    {{.replica = 2, .shard = 2}, true, config::ShardedState::Gradients},
    {{.shard = 2, .tensor = 2}},
    {{.shard = 5}, true, config::ShardedState::Optimizer},
    {{.pipe = 3}, true, config::ShardedState::Parameters, "zb-h1"},
    {{.pipe = 2, .shard = 2}},
    {{.pipe = 2, .tensor = 2}, true, config::ShardedState::Parameters, "gpipe"}};

const MeshCase kExpertMeshes[] = {
    {{}},
    {{.replica = 2, .expert = 2}},
    {{.replica = 4, .expert = 4}},
    {{.shard = 2, .expert = 2}},
    {{.replica = 2, .shard = 2, .expert = 2}, true, config::ShardedState::Gradients},
    {{.replica = 2, .shard = 2, .expert = 4}, true, config::ShardedState::Optimizer},
    {{.shard = 2, .tensor = 2, .expert = 2}, false},
    {{.pipe = 2, .shard = 2, .expert = 2}}};

/// What is trained.
struct What {
  config::OptimizerKind optimizer = config::OptimizerKind::AdamW;
  const char* model = "gpt";
};

config::Config config_of_mesh(const MeshCase& mesh, const What& what = {}) {
  config::Config config;
  config.model.kind = what.model;
  config.precision.compute = config.precision.reduce = config::Dtype::Float64;
  config.model.layers = 1;
  config.model.hidden = 24;
  config.model.heads = 6;
  config.model.kv_heads = 2;  // copies on four ranks
  config.model.seq = 7;
  config.model.vocab = 37;
  config.tensor.sequence = mesh.sequence;
  config.memory.shard = mesh.what;
  config.pipeline.schedule = mesh.schedule;
  config.pipeline.balance.by = config::Balance::By::Parameters;
  config.batch.global = 5;
  config.batch.micro = 2;
  config.optim.kind = what.optimizer;
  config.optim.lr = 0.01;
  config.optim.warmup = 3;
  config.model.experts = 4;
  config.model.expert_ffn = 10;
  if (what.optimizer == config::OptimizerKind::Sgd)
    config.model.router = config::RouterKind::SigmoidBias;
  return config;
}

/// A run on one mesh, that can be left and taken up on another.
class OnMesh {
 public:
  OnMesh(const Communicator& world, const MeshCase& on, const What& what = {})
      : config_(config_of_mesh(on, what)),
        mesh_(world, on.degrees),
        trainer_(
            config_, mesh_,
            train::build([&](const Mesh& to) { return models::make_model(config_, to); }, mesh_),
            12) {}

  /// The losses of steps [from, to].
  std::vector<double> steps(int64_t from, int64_t to) {
    const data::Markov data({.vocab = 37, .seq = 7, .samples = 32, .seed = 3});
    const data::Order order(3, data.size(), config_.batch.global);  // seven batches an epoch
    const auto samples = mesh_.samples();
    std::vector<double> losses;
    for (int64_t step = from; step <= to; ++step)
      losses.push_back(
          trainer_
              .step(step, data::Loader::read(data, order, samples.rank(), samples.size(), step - 1))
              .loss);
    return losses;
  }

  void save(const std::string& folder, int64_t step) {
    checkpoint::Saver saver(folder, mesh_, 3);
    saver.save(step, trainer_.state());
    EXPECT_EQ(saver.wait(), std::nullopt);
    mesh_.world().barrier();
  }

  void load(const std::string& path) {
    format::Checkpoint saved(path);
    trainer_.load(saved, trainer_.own_state());
    trainer_.restore();
  }

 private:
  config::Config config_;
  Mesh mesh_;
  train::Trainer trainer_;
};

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted,
                 std::size_t from) {
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], wanted[from + i], kSameLoss) << "step " << from + i + 1;
}

/// Every tensor of a checkpoint, whole.
std::map<std::string, at::Tensor> read_whole(const std::string& folder) {
  format::Checkpoint saved(folder);
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, info] : saved.index().tensors) {
    at::Tensor tensor = torch::empty(info.shape, torch::kDouble);
    saved.read(format::whole_piece(name, info.shape), info.dtype, tensor.data_ptr());
    all[name] = tensor;
  }
  return all;
}

/// From each of the meshes to each of them; `odd`: the model of every fourth run.
void continue_on(std::span<const MeshCase> meshes, const char* model, const char* odd) {
  at::set_num_threads(1);
  const Scratch scratch;
  for (std::size_t from = 0; from < meshes.size(); ++from) {
    const std::string saved = scratch / fmt::format("from{}", from);
    const What what{from % 2 == 0 ? config::OptimizerKind::AdamW : config::OptimizerKind::Sgd,
                    from % 4 == 2 ? odd : model};
    std::vector<double> wanted;
    run_world(kThreads, meshes[from].degrees.world(), [&](const Communicator& world) {
      at::set_num_threads(1);
      OnMesh run(world, meshes[from], what);
      auto losses = run.steps(1, 5);
      run.save(saved, 5);
      for (double loss : run.steps(6, 10)) losses.push_back(loss);
      if (world.rank() == 0) wanted = losses;
    });
    const std::string path = saved + "/" + format::step_name(5);
    const auto expected = read_whole(path);
    ASSERT_GT(expected.size(), 20u);
    for (std::size_t to = 0; to < meshes.size(); ++to) {
      SCOPED_TRACE(fmt::format("from {} to {}", to_string(meshes[from].degrees),
                               to_string(meshes[to].degrees)));
      const std::string again = scratch / fmt::format("from{}to{}", from, to);
      run_world(kThreads, meshes[to].degrees.world(), [&](const Communicator& world) {
        at::set_num_threads(1);
        OnMesh run(world, meshes[to], what);
        run.load(path);
        run.save(again, 5);
        expect_near(run.steps(6, 10), wanted, 5);
      });
      // What was loaded is what was saved, bit for bit.
      const auto got = read_whole(again + "/" + format::step_name(5));
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(got.at(name).equal(tensor)) << name;
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(CheckpointsOfAnyMesh, ContinueOnAnyOther) {
  continue_on(kMeshes, "gpt", "llama");
}

TEST(CheckpointsOfAnyMesh, TakeTheirExpertsWithThem) {
  continue_on(kExpertMeshes, "moe-gpt", "moe-gpt");
}

TEST(CheckpointsOfAnyMesh, FourRanksThenTwoThenThreeThenFiveInTheMiddleOfAnEpoch) {
  at::set_num_threads(1);
  const Scratch scratch;
  const std::string folder = scratch / "run";
  const MeshCase legs[] = {{{.shard = 4}}, {{.pipe = 2}}, {{.replica = 3}}, {{.shard = 5}}};
  std::vector<double> wanted;
  run_world(kThreads, 1,
            [&](const Communicator& world) { wanted = OnMesh(world, {}).steps(1, 12); });
  for (int64_t leg = 0; leg < 4; ++leg) {
    run_world(kThreads, legs[leg].degrees.world(), [&](const Communicator& world) {
      at::set_num_threads(1);
      OnMesh run(world, legs[leg]);
      if (leg > 0) run.load(folder + "/" + format::step_name(3 * leg));
      expect_near(run.steps(3 * leg + 1, 3 * leg + 3), wanted, static_cast<std::size_t>(3 * leg));
      run.save(folder, 3 * leg + 3);
    });
  }
}

TEST(CheckpointsOfAnyMesh, HoldEveryPieceOnceAndEveryRankWritesItsOwn) {
  const Scratch scratch;
  for (const MeshCase& on :
       {MeshCase{{.replica = 2, .tensor = 2}}, MeshCase{{.shard = 4}},
        MeshCase{{.replica = 2, .shard = 2}, true, config::ShardedState::Optimizer},
        MeshCase{{.pipe = 2, .replica = 2}}, MeshCase{{.pipe = 2, .shard = 2}}}) {
    const std::string folder = scratch / ("run" + to_string(on.degrees));
    run_world(kThreads, 4, [&](const Communicator& world) {
      at::set_num_threads(1);
      OnMesh(world, on).save(folder, 0);
    });
    format::Checkpoint saved(folder + "/" + format::step_name(0));
    EXPECT_EQ(saved.index().files.size(), 4u);
    for (const auto& [name, info] : saved.index().tensors) {
      int64_t stored = 0;
      for (const auto& piece : info.pieces) stored += piece.count;
      EXPECT_EQ(stored, Box({}, info.shape).numel()) << name;
    }
  }
}

}  // namespace
}  // namespace trireme::test
