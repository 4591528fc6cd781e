// Steps whose results are read later, and steps that are replayed as a CUDA graph: both give what
// plain steps give.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <map>

#include "models/registry.h"
#include "support/on_gpu.h"
#include "trireme/train/trainer.h"

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
  const ShortEpochs data;
  const data::Order order(3, data.size(), config.batch.global);
  StepsOutcome all;
  const auto take = [&] {
    const auto result = trainer.take();
    all.losses.push_back(result.loss);
    all.norms.push_back(result.grad_norm);
  };
  for (int64_t step = 1; step <= steps; ++step) {
    trainer.start(step, data::Loader::read(data, order, 0, 1, step - 1));
    while (trainer.num_started() > ahead) take();
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

TEST(StepGraph, SaysWhyStepsAreNotRecorded) {
  const auto config = tiny_gpt(config::Dtype::Float32);
  const Mesh mesh = mesh_of_one();
  const auto make = [&](const Mesh& on) { return models::make_model(config, on); };
  const train::Trainer trainer(config, mesh, train::build(make, mesh), 1);
  EXPECT_EQ(trainer.graph_obstacle(), "there is no GPU");
}

}  // namespace
}  // namespace trireme::test
