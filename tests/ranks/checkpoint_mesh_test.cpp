// Checkpoints fit any mesh: saved on one, loaded on another, the weights bit for bit.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/registry.h"
#include "support/backends.h"
#include "support/scratch.h"
#include "support/tiny.h"
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

constexpr double kSame = 1e-12;  // the next loss, in float64

config::Config config_of(bool sequence) {
  config::Config config;
  config.precision.compute = config.precision.reduce = "float64";
  config.model.layers = 1;
  config.model.hidden = 24;
  config.model.heads = 6;
  config.model.kv_heads = 2;  // copies on four ranks
  config.model.seq = 7;
  config.model.vocab = 37;
  config.tensor.sequence = sequence;
  config.batch.global = 5;
  config.batch.micro = 2;
  return config;
}

struct MeshCase {
  Degrees degrees;
  bool sequence = true;
};
const MeshCase kMeshes[] = {{{}},
                            {{.replica = 3}},
                            {{.tensor = 2}},
                            {{.tensor = 4}},
                            {{.replica = 2, .tensor = 2}, false},
                            {{.replica = 2, .tensor = 4}}};

double step_once(train::Trainer& trainer, const config::Config& config, const Mesh& mesh,
                 int64_t step) {
  const data::Markov data({.vocab = 37, .seq = 7, .samples = 32, .seed = 3});
  const data::Order order(3, data.size(), config.batch.global);
  const auto replicas = mesh.samples();
  return trainer
      .step(step, data::Loader::read(data, order, replicas.rank(), replicas.size(), step - 1))
      .loss;
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

TEST(CheckpointsOfAnyMesh, LoadOnAnyOtherBitForBit) {
  at::set_num_threads(1);
  const Scratch scratch;
  for (std::size_t from = 0; from < std::size(kMeshes); ++from) {
    const std::string saved = scratch / fmt::format("from{}", from);
    double next = 0;  // the loss of the step after
    run_world(kThreads, kMeshes[from].degrees.world(), [&](const Communicator& world) {
      const auto config = config_of(kMeshes[from].sequence);
      const Mesh mesh(world, kMeshes[from].degrees);
      train::Trainer trainer(config, mesh, models::make_model(config, mesh), 5);
      step_once(trainer, config, mesh, 1);
      checkpoint::Saver saver(saved, mesh, 3);
      saver.save(1, trainer.state());
      EXPECT_EQ(saver.wait(), std::nullopt);
      world.barrier();
      const double loss = step_once(trainer, config, mesh, 2);
      if (world.rank() == 0) next = loss;
    });
    const std::string first = saved + "/" + format::step_name(1);
    const auto expected = read_whole(first);
    ASSERT_GT(expected.size(), 30u);
    for (std::size_t to = 0; to < std::size(kMeshes); ++to) {
      SCOPED_TRACE(fmt::format("from {} to {}", to_string(kMeshes[from].degrees),
                               to_string(kMeshes[to].degrees)));
      const std::string again = scratch / fmt::format("from{}to{}", from, to);
      run_world(kThreads, kMeshes[to].degrees.world(), [&](const Communicator& world) {
        const auto config = config_of(kMeshes[to].sequence);
        const Mesh mesh(world, kMeshes[to].degrees);
        train::Trainer trainer(config, mesh, models::make_model(config, mesh), 5);
        format::Checkpoint checkpoint(first);
        checkpoint::load(checkpoint, trainer.state());
        trainer.restore(checkpoint.index().extra);
        checkpoint::Saver saver(again, mesh, 3);
        saver.save(1, trainer.state());
        EXPECT_EQ(saver.wait(), std::nullopt);
        EXPECT_NEAR(step_once(trainer, config, mesh, 2), next, kSame);
      });
      const auto got = read_whole(again + "/" + format::step_name(1));
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(got.at(name).equal(tensor)) << name;
    }
  }
}

TEST(CheckpointsOfAnyMesh, HoldEveryPieceOnceAndEveryRankWritesItsOwn) {
  const Scratch scratch;
  run_world(kThreads, 4, [&](const Communicator& world) {
    at::set_num_threads(1);
    const auto config = config_of(true);
    const Mesh mesh(world, {.replica = 2, .tensor = 2});
    train::Trainer trainer(config, mesh, models::make_model(config, mesh), 5);
    checkpoint::Saver saver(scratch / "run", mesh, 3);
    saver.save(0, trainer.state());
    EXPECT_EQ(saver.wait(), std::nullopt);
  });
  format::Checkpoint saved(scratch / "run/" + format::step_name(0));
  EXPECT_EQ(saved.index().files.size(), 4u);
  for (const auto& [name, info] : saved.index().tensors) {
    int64_t stored = 0;
    for (const auto& piece : info.pieces) stored += piece.count;
    EXPECT_EQ(stored, Box({}, info.shape).numel()) << name;
  }
}

}  // namespace
}  // namespace trireme::test
