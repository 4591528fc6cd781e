// Sharding the state must not change the answer, whatever is sharded and whatever else is cut.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "support/tiny_model.h"

namespace trireme::test {
namespace {

using comm::Communicator;

const config::ShardedState kWhat[] = {config::ShardedState::Optimizer,
                                      config::ShardedState::Gradients,
                                      config::ShardedState::Parameters};

/// One in `every` of the meshes.
void check_levels(const std::string& kind, int every) {
  const config::Recompute recompute[] = {config::Recompute::None, config::Recompute::Block,
                                         config::Recompute::Selective, config::Recompute::Cheap,
                                         config::Recompute::Sqrt};
  const std::pair<int64_t, int64_t> heads[] = {{4, 4}, {6, 2}, {6, 6}, {4, 1}};
  int number = 0;
  for (config::ShardedState what : kWhat) {
    for (const auto& [replica, shard, tensor] :
         {std::tuple{1, 2, 1}, {1, 3, 1}, {2, 2, 1}, {1, 2, 2}, {1, 5, 1}, {2, 2, 2}, {1, 2, 4}}) {
      for (const bool tie : {true, false}) {
        // The other ways take turns.
        const auto [h, k] = heads[number / 2 % 4];
        const Case one{.replica = replica,
                       .shard = shard,
                       .tensor = tensor,
                       .what = what,
                       .sequence = number / 2 % 3 != 1,
                       .tie = tie,
                       .masked = number / 4 % 2 == 0,
                       .heads = h,
                       .kv_heads = k,
                       .batch = number / 2 % 2 == 0 ? 8 : 5,
                       .recompute = recompute[(number + number / 5) % 5],
                       .kind = kind};
        if (number++ % every == 0) check(one);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Sharded, EveryLevelGivesTheAnswerOfOneRank) {
  check_levels("gpt", 1);
}

TEST(Sharded, TheLlamaToo) {
  check_levels("llama", 3);
}

TEST(Sharded, TheMlpToo) {
  for (config::ShardedState what : kWhat)
    check({.replica = 2,
           .shard = 2,
           .what = what,
           .batch = 5,
           .recompute = config::Recompute::Block,
           .kind = "mlp"});
}

TEST(Sharded, TheSameOnProcesses) {
  for (const BackendUnderTest& backend : all_backends()) {
    if (backend.threads) continue;
    for (config::ShardedState what : kWhat) {
      check({.shard = 3, .what = what, .batch = 5, .recompute = config::Recompute::Block}, backend);
      check({.replica = 2, .shard = 2, .what = what, .tie = false, .heads = 6, .kv_heads = 2},
            backend);
    }
  }
}

/// Twenty losses and the weights after them, in float32 without clipping and accumulation.
std::pair<std::vector<double>, std::vector<at::Tensor>> twenty_steps(const Communicator& world,
                                                                     const Degrees& degrees,
                                                                     config::ShardedState what) {
  Case c{.what = what, .batch = 6};
  config::Config config = config_of(c);
  config.precision.compute = config.precision.reduce = config::Dtype::Float32;
  config.optim.clip = 0;
  config.batch.micro = 6;
  const Mesh mesh(world, degrees);
  const auto model = [&](const Mesh& on) { return models::make_model(config, on); };
  train::Trainer trainer(config, mesh, train::build(model, mesh), 20);
  const Labelled data(c);
  const data::Order order(3, data.size(), c.batch);
  std::pair<std::vector<double>, std::vector<at::Tensor>> result;
  for (int step = 1; step <= 20; ++step)
    result.first.push_back(trainer
                               .step(step, data::Loader::read(data, order, mesh.samples().rank(),
                                                              mesh.samples().size(), step - 1))
                               .loss);
  for (std::size_t i = 0; i < trainer.parameters().size(); ++i)
    result.second.push_back(trainer.attached().value(i).clone());
  return result;
}

ON_EVERY_BACKEND(ShardedBits);
TEST_P(ShardedBits, AreThoseOfDataParallel) {
  for (const int size : {2, 3}) {
    run_world(GetParam(), size, [&](const Communicator& world) {
      at::set_num_threads(1);
      const auto expected =
          twenty_steps(world, {.replica = size}, config::ShardedState::Parameters);
      EXPECT_LT(expected.first.back(), expected.first.front() - 0.1) << "nothing was learnt";
      for (config::ShardedState what : kWhat) {
        SCOPED_TRACE(to_string(what));
        const auto got = twenty_steps(world, {.shard = size}, what);
        EXPECT_EQ(got.first, expected.first);
        for (std::size_t i = 0; i < expected.second.size(); ++i)
          EXPECT_TRUE(got.second[i].equal(expected.second[i])) << i;
      }
    });
  }
}

TEST(Sharded, AUsersModelIsProvedRightWithBoxesThatDoNotLieOneByOne) {
  // Sections along the inputs: the boxes of a rank's own weight do not lie one by one.
  const auto sections = [](Layers& layers, const Mesh&) {
    using Into = nn::LinearImpl::Options;
    const std::vector<Section> halves = {{.size = kWide / 2}, {.size = kWide / 2}};
    layers.up = std::make_shared<nn::LinearImpl>(kWidth, kWide, Into{.out_sections = halves});
    layers.down = std::make_shared<nn::LinearImpl>(kWide, kWidth, Into{.in_sections = halves});
  };
  for (const Degrees& degrees :
       {Degrees{.shard = 2}, Degrees{.shard = 2, .tensor = 2}, Degrees{.replica = 2, .shard = 3}}) {
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      const auto report = prove(world, {degrees, Sequence::Cut, sections});
      EXPECT_TRUE(report.same()) << report.text();
      EXPECT_TRUE(report.skipped.empty());
    });
  }
}

/// A norm with one more weight, for some samples only: most ranks have no gradient for it.
struct GatedNorm : nn::LayerNormImpl {
  explicit GatedNorm(int64_t width)
      : LayerNormImpl(width), gate(parameter("gate", {width}, nn::InitRule::ones())) {}
  nn::Flow compute(const nn::Flow& in) override {
    const nn::Flow out = LayerNormImpl::compute(in);
    return out.with(gated(out.x(), in.where.get()));
  }
  at::Tensor gated(const at::Tensor& y, const nn::Where* where) const {
    std::vector<int64_t> rows;
    for (std::size_t i = 0; where != nullptr && i < where->sample_ids.size(); ++i)
      if (where->sample_ids[i] % 5 == 0) rows.push_back(static_cast<int64_t>(i));
    if (rows.empty()) return y;
    const auto count = static_cast<int64_t>(rows.size());
    return y.index_add(0, torch::tensor(rows, torch::kLong), gate.expand({count, y.size(1), -1}));
  }
  at::Tensor gate;
};

TEST(Sharded, AWeightThatOnlySomeRanksUseDelaysNoOtherSet) {
  // Under sequence parallelism the gate is summed over more ranks than the other weights: two sets
  // of buckets scatter over the same shard axis, and come in another order on every rank.
  for (const config::ShardedState what : kWhat) {
    run_world(kThreads, 4, [&](const Communicator& world) {
      config::Config config = small_config();
      config.memory.shard = what;
      config.batch.micro = 3;
      const auto report =
          verify::verify({config,
                          [](const Mesh& mesh) {
                            Layers layers;
                            layers.norm = std::make_shared<GatedNorm>(kWidth);
                            return std::make_shared<TinyImpl>(layers, mesh, Sequence::Cut);
                          },
                          std::make_shared<Texts>()},
                         world, {.shard = 2, .tensor = 2}, {.steps = 4});
      EXPECT_TRUE(report.same()) << report.text();
    });
  }
}

}  // namespace
}  // namespace trireme::test
