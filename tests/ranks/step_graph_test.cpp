// Steps whose results are read later, and steps that are replayed as a CUDA graph: both give what
// plain steps give.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <torch/torch.h>

#include <map>

#include "models/registry.h"
#include "support/on_gpu.h"
#include "support/run_ranks.h"
#include "support/through_gpu.h"
#include "trireme/train/trainer.h"
#include "trireme/trireme.h"

namespace trireme::test {
namespace {

config::Config tiny_gpt(config::Dtype precision) {
  config::Config config;
  config.model.layers = 2;
  config.model.hidden = 64;
  config.model.heads = 2;
  config.model.seq = 64;
  config.model.vocab = 128;
  config.batch.global = config.batch.micro = 4;
  config.optim.lr = 1e-2;
  config.precision.compute = precision;
  return config;
}

/// Six batches of 4 rows and one of 2, again and again: the fourth step is recorded.
struct ShortEpochs final : data::Dataset {
  int64_t size() const override { return 26; }
  data::Sample get(int64_t i) const override {
    const auto tokens = (torch::arange(65, torch::kLong) * (2 * i + 3) + i) % 128;
    return {tokens.slice(0, 0, 64).clone(), tokens.slice(0, 1, 65).clone()};
  }
};

struct StepsOutcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

/// Runs steps of which at most `ahead` are started and not yet taken.
StepsOutcome run_steps(const config::Config& config, const Mesh& mesh, int64_t steps,
                       std::size_t ahead) {
  const auto make = [&](const Mesh& on) { return models::make_model(config, on); };
  train::Trainer trainer(config, mesh, train::build(make, mesh), steps);
  const bool records = config.run.graph != config::Graph::Off && mesh.device().is_cuda();
  EXPECT_EQ(trainer.graph_obstacle().empty(), records) << trainer.graph_obstacle();
  const ShortEpochs data;
  const data::Order order(3, data.size(), config.batch.global);
  const comm::Communicator samples = mesh.samples();
  StepsOutcome all;
  const auto take = [&] {
    const auto result = trainer.take();
    all.losses.push_back(result.loss);
    all.norms.push_back(result.grad_norm);
  };
  for (int64_t step = 1; step <= steps; ++step) {
    trainer.start(step, data::Loader::read(data, order, samples.rank(), samples.size(), step - 1));
    while (trainer.num_started() > ahead) take();
    // Evaluations before the recorded step and among replays use weights that are gathered now.
    if (step != 3 && step != 8) continue;
    while (trainer.num_started() > 0) take();
    all.losses.push_back(trainer.evaluate(data, 1).loss);
    trainer.check_same();
  }
  while (trainer.num_started() > 0) take();
  for (const auto& shard : trainer.shards())
    all.weights[shard.name] = shard.master.detach().cpu().clone();
  return all;
}

void expect_same_steps(const StepsOutcome& a, const StepsOutcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, weight] : a.weights)
    EXPECT_TRUE(torch::equal(weight, b.weights.at(name))) << name;
}

TEST(Steps, GiveTheSameResultsHoweverLateTheyAreTaken) {
  const auto config = tiny_gpt(config::Dtype::Float32);
  const auto at_once = run_steps(config, mesh_of_one(), 9, 0);
  EXPECT_LT(at_once.losses.back(), at_once.losses.front());
  expect_same_steps(at_once, run_steps(config, mesh_of_one(), 9, 1));
  expect_same_steps(at_once, run_steps(config, mesh_of_one(), 9, 9));
}

TEST(StepGraph, GivesTheBitsOfPlainStepsWithShortBatchesBetween) {
  NEEDS_GPU();
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  const Mesh gpu_mesh = mesh_of_one(gpu().device());
  for (const auto precision : {config::Dtype::BFloat16, config::Dtype::Float16}) {
    auto config = tiny_gpt(precision);
    config.run.device = config::Device::Cuda;
    const auto replayed = run_steps(config, gpu_mesh, 15, 1);
    config.run.graph = config::Graph::Off;
    expect_same_steps(run_steps(config, gpu_mesh, 15, 1), replayed);
    expect_same_steps(run_steps(config, gpu_mesh, 15, 0), replayed);
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

struct RecordedMesh {
  const char* name;
  Degrees degrees;
  config::ShardedState shards = config::ShardedState::Parameters;
};

class StepGraphOverNccl : public ::testing::TestWithParam<RecordedMesh> {};

TEST_P(StepGraphOverNccl, GivesTheBitsOfPlainSteps) {
  if (!nccl_available()) GTEST_SKIP() << "no GPU, or no NCCL that lets ranks share one";
  run_ranks(2, [](const Rank& me) {
    ::setenv("TRIREME_BACKEND", "nccl", 1);
    const auto world = init(fmt::format("file://{}?rank={}&size={}",
                                        (me.scratch / "store").string(), me.rank, me.size));
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    auto config = tiny_gpt(config::Dtype::BFloat16);
    config.run.device = config::Device::Cuda;
    config.batch.micro = 2;
    config.memory.shard = GetParam().shards;
    config.pipeline.balance = config::parse_balance("params").value();
    const Mesh mesh(world, GetParam().degrees, gpu_of(me.rank));
    const auto replayed = run_steps(config, mesh, 15, 1);
    config.run.graph = config::Graph::Off;
    expect_same_steps(run_steps(config, mesh, 15, 1), replayed);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, StepGraphOverNccl,
    ::testing::Values(
        RecordedMesh{"replica", {.replica = 2}}, RecordedMesh{"tensor", {.tensor = 2}},
        RecordedMesh{"pipe", {.pipe = 2}}, RecordedMesh{"shardedparameters", {.shard = 2}},
        RecordedMesh{"shardedgradients", {.shard = 2}, config::ShardedState::Gradients},
        RecordedMesh{"shardedoptimizer", {.shard = 2}, config::ShardedState::Optimizer}),
    [](const auto& mesh) { return std::string(mesh.param.name); });

TEST(StepGraph, SaysWhyStepsAreNotRecorded) {
  const auto config = tiny_gpt(config::Dtype::Float32);
  const Mesh mesh = mesh_of_one();
  const auto make = [&](const Mesh& on) { return models::make_model(config, on); };
  const train::Trainer trainer(config, mesh, train::build(make, mesh), 1);
  EXPECT_EQ(trainer.graph_obstacle(), "there is no GPU");
}

}  // namespace
}  // namespace trireme::test
