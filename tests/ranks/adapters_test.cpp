// Low-rank adapters: the answer of one rank on every mesh, no memory for what is frozen, and
// checkpoints that hold adapters alone.
#include "trireme/nn/adapters.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "support/tiny_model.h"
#include "trireme/core/error.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/train/footprint.h"
#include "trireme/train/memory.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

/// The case with adapters on these layers.
Case adapted(Case c, std::vector<std::string> targets = {"*"}) {
  c.otherwise = fmt::format("lora {}", fmt::join(targets, " "));
  c.change = [targets](config::Config& config) {
    config.lora = {.rank = 3, .alpha = 6, .targets = targets};
    config.optim.lr = 0.05;
  };
  return c;
}

TEST(Adapters, GiveTheAnswerOfOneRankHoweverLayersAreCut) {
  for (const bool sequence : {true, false}) {
    check(adapted({.tensor = 2, .sequence = sequence}));
    check(adapted({.tensor = 4, .sequence = sequence, .heads = 6, .kv_heads = 2}));
    check(adapted({.replica = 2, .tensor = 3, .sequence = sequence, .heads = 6, .kv_heads = 6}));
  }
  check(adapted({.tensor = 2, .kind = "mlp"}));
  check(adapted({.tensor = 2, .kv_heads = 2, .kind = "llama"}));
  check(adapted({.replica = 3, .masked = true, .batch = 5}));
}

TEST(Adapters, GiveTheAnswerOfOneRankHoweverStateIsSharded) {
  using config::Recompute;
  using config::ShardedState;
  check(adapted({.shard = 3, .what = ShardedState::Optimizer, .recompute = Recompute::Block}));
  check(adapted({.shard = 2, .tensor = 2, .what = ShardedState::Gradients}));
  check(adapted({.shard = 2, .recompute = Recompute::Sqrt, .layers = 5}));
  check(adapted({.replica = 2, .shard = 2, .recompute = Recompute::Cheap}));
  check(adapted({.shard = 2, .kind = "mlp"}));
}

TEST(Adapters, GiveTheAnswerOfOneRankInPipelines) {
  using config::Recompute;
  // Backward is split; blocks are cut inside; weights are gathered again for each micro-batch.
  check(adapted({.pipe = 2, .schedule = "zb-h1"}));
  check(adapted({.recompute = Recompute::Block, .pipe = 4, .schedule = "zb-h1"}));
  check(adapted({.tensor = 2, .recompute = Recompute::Cheap, .pipe = 2, .schedule = "1f1b"}));
  check(adapted({.shard = 2, .pipe = 2, .schedule = "zb-h1", .keep_gathered = false}));
  check(adapted({.recompute = Recompute::ExceptLast, .pipe = 2, .schedule = "1f1b"}));
  // The first stage trains nothing: no gradient is sent back to it.
  check(adapted({.tie = false, .pipe = 2, .schedule = "1f1b"}, {"h.1.attn.*"}));
  check(adapted({.pipe = 2, .schedule = "zb-h1"}, {"h.0.mlp.c_fc"}));
}

TEST(Adapters, AreProvedWithTheirOutputs) {
  for (const Degrees& degrees : {Degrees{.tensor = 2}, Degrees{.replica = 2, .tensor = 2},
                                 Degrees{.shard = 2}, Degrees{.pipe = 2}}) {
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      config::Config config = tiny_gpt_config();
      config.model.dropout = 0.1;
      config.lora = {.rank = 2, .alpha = 8, .targets = {"*.attn.*", "*.mlp.*"}};
      const auto report = prove_model(world, config, degrees);
      EXPECT_TRUE(report.same()) << report.text();
      EXPECT_THAT(report.text(), HasSubstr("h.0.attn.c_attn.lora_A.weight"));
    });
  }
}

TEST(Adapters, ThatAreNotSummedOverTheRanksWouldBeFound) {
  // In a column that enters with whole positions A has its whole gradient on every rank; with cut
  // positions only a part of it. The layouts say which.
  for (const bool sequence : {true, false}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      const Case c = adapted({.tensor = 2, .sequence = sequence});
      const auto model = models::make_model(config_of(c), Mesh(world, {.tensor = 2}));
      std::map<std::string, Layout> layouts;
      for (const auto& one : nn::parameters_of(*model)) layouts.emplace(one.name, one.layout);
      const auto of = [&](const std::string& name) -> const Layout& {
        return layouts.at("h.0.mlp." + name + ".weight");
      };
      EXPECT_EQ(of("c_fc.lora_A").is_cut(Axis::Tensor), false);
      EXPECT_EQ(of("c_fc.lora_A").partial().empty(), !sequence);
      EXPECT_TRUE(of("c_fc.lora_B").is_cut(Axis::Tensor));
      EXPECT_TRUE(of("c_proj.lora_A").is_cut(Axis::Tensor));
      EXPECT_EQ(of("c_proj.lora_B").is_cut(Axis::Tensor), false);
      EXPECT_EQ(of("c_proj.lora_B").partial().empty(), !sequence);
    });
  }
}

int64_t numel_of(const nn::ModelImpl& model, bool trained) {
  int64_t count = 0;
  for (const auto& one : nn::parameters_of(model))
    if (!trained || one.tensor.requires_grad()) count += one.tensor.numel();
  return count;
}

/// Bytes of tensors after a step, without the activations.
int64_t bytes_after_a_step(const config::Config& config) {
  at::set_num_threads(1);
  const Mesh mesh = mesh_of_one();
  const train::TensorMemory memory;
  train::Trainer trainer(config, mesh, models::make_model(config, mesh), 4);
  trainer.step(1, [&] {
    const at::Tensor tokens = torch::zeros({2, config.model.seq}, torch::kLong);
    return data::Batch{.sample_ids = {0, 1},
                       .inputs = tokens,
                       .targets = tokens,
                       .largest_block = 2,
                       .all_rows = 2};
  }());
  return memory.now();
}

TEST(Adapters, TakeMemoryForThemselvesOnly) {
  config::Config config = config_of({.batch = 2, .dtype = config::Dtype::Float32});
  config.model.hidden = 96;
  config.model.ffn = 384;
  config::Config full = config;
  config.lora = {.rank = 2, .targets = {"*.attn.*"}};
  const auto whole = models::make_whole(config, Degrees{});
  const int64_t all = numel_of(*whole, false), trained = numel_of(*whole, true);
  ASSERT_LT(20 * trained, all);
  const auto foretold = train::footprint(config, *whole, Degrees{}, c10::DeviceType::CPU);
  EXPECT_EQ(foretold.parameters, 4 * all);
  EXPECT_EQ(foretold.gradients, 4 * trained);
  EXPECT_LE(foretold.optimizer, 8 * trained + 8 * 64 * 16) << "two moments, each padded";
  EXPECT_EQ(foretold.copy, 12 * trained) << "a checkpoint holds adapters and their state";
  const int64_t with = bytes_after_a_step(config), without = bytes_after_a_step(full);
  const auto in_all =
      static_cast<double>(foretold.parameters + foretold.gradients + foretold.optimizer);
  EXPECT_NEAR(static_cast<double>(with) / in_all, 1, 0.1);
  EXPECT_GT(without, 3 * with) << "weights, gradients and two moments, not weights alone";
}

TEST(Adapters, LeaveNoMastersOfFrozenWeights) {
  config::Config config = config_of({.dtype = config::Dtype::BFloat16});
  config.precision.reduce = config::Dtype::Float32;
  config.lora = {.rank = 2, .targets = {"*"}};
  const auto whole = models::make_whole(config, Degrees{});
  const auto foretold = train::footprint(config, *whole, Degrees{}, c10::DeviceType::CPU);
  EXPECT_EQ(foretold.masters, 4 * numel_of(*whole, true));
  EXPECT_EQ(foretold.parameters - foretold.masters, 2 * numel_of(*whole, false));
  const Mesh mesh = mesh_of_one();
  const train::Trainer trainer(config, mesh, models::make_model(config, mesh), 1);
  for (const auto& one : trainer.attached().frozen())
    EXPECT_EQ(one.master.scalar_type(), at::kBFloat16) << one.name;
  for (const auto& one : trainer.shards())
    EXPECT_EQ(one.master.scalar_type(), at::kFloat) << one.name;
}

TEST(Adapters, AreAllThatACheckpointHolds) {
  const config::Config config = config_of(adapted({}, {"*.c_attn"}));
  const Mesh mesh = mesh_of_one();
  const train::Trainer trainer(config, mesh, models::make_model(config, mesh), 1);
  const auto state = trainer.state();
  for (const auto& item : state.items) EXPECT_THAT(item.piece.name, HasSubstr(".lora_"));
  EXPECT_EQ(state.items.size(), 2u * 2 * 3) << "A and B of two layers, each with two moments";
  const core::Json wanted = {
      {"rank", 3}, {"scale", 2.0}, {"targets", {"*.c_attn"}}, {"base", {{"seed", 1}}}};
  EXPECT_EQ(state.extra.at("lora"), wanted);
}

/// A model of one's own: two Linears, one of them with a GELU.
struct OwnImpl : torch::nn::Module {
  OwnImpl() {
    up = register_module("up", nn::Linear(6, 10, nn::LinearOptions{.gelu = true}));
    down = register_module("down", nn::Linear(10, 4));
    register_module("other", torch::nn::Linear(4, 4));
    to(torch::kDouble);
    nn::initialize(*this, 5);
  }
  at::Tensor forward(const at::Tensor& x) { return down->forward(up->forward(x)); }
  nn::Linear up{nullptr}, down{nullptr};
};

TEST(Adapters, OfAModelOfYourOwnBeginWithWhatItComputes) {
  const at::Tensor x = torch::sin(torch::arange(18., torch::kDouble)).view({3, 6});
  OwnImpl plain, model;
  EXPECT_THAT(nn::add_adapters(model, {.rank = 2, .alpha = 6, .targets = {"up", "d*"}}),
              ElementsAre("up", "down"));
  EXPECT_TRUE(model.forward(x).equal(plain.forward(x))) << "B is zero";
  EXPECT_GT(model.up->adapter()[0]->weight.abs().max().item<double>(), 0);
  EXPECT_EQ(model.up->adapter()[0]->weight.scalar_type(), at::kDouble);
  parallel::DataParallel replicas(model, mesh_of_one());
  std::vector<std::string> names;
  for (const auto& one : replicas.parameters()) names.push_back(one.name);
  EXPECT_THAT(names, UnorderedElementsAre("up.lora_A.weight", "up.lora_B.weight",
                                          "down.lora_A.weight", "down.lora_B.weight"));
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    replicas.backward({model.forward(x).pow(2).sum(), x.size(0)});
    replicas.finish();
    optimizer.step();
  }
  for (const auto& item : plain.named_parameters()) {
    if (item.key().starts_with("other")) continue;  // torch draws it anew each time
    EXPECT_TRUE(model.named_parameters()[item.key()].equal(item.value())) << item.key();
  }

  // h + (alpha / r) B A x, written out.
  const auto layer = [&](nn::Linear& one, const at::Tensor& in) {
    const auto a = one->adapter()[0]->weight, b = one->adapter()[1]->weight;
    return torch::linear(in, one->weight, one->bias) + 3 * in.mm(a.t()).mm(b.t());
  };
  const at::Tensor wanted = layer(model.down, torch::gelu(layer(model.up, x), "tanh"));
  EXPECT_LE((model.forward(x) - wanted).abs().max().item<double>(), 1e-14);
  EXPECT_GT((wanted - plain.forward(x)).abs().max().item<double>(), 1e-2) << "it has learned";

  const at::Tensor before = model.forward(x).detach();
  nn::merge_adapters(model);
  EXPECT_LE((model.forward(x) - before).abs().max().item<double>(), 1e-14);
  EXPECT_FALSE(model.up->weight.equal(plain.up->weight));
  EXPECT_EQ(model.up->adapter()[1]->weight.abs().max().item<double>(), 0);
}

TEST(Adapters, ThatFindNoLayerAreRefused) {
  OwnImpl model;
  const auto refusal = [&](const char* pattern) {
    return [&model, pattern] { nn::add_adapters(model, {.targets = {"up", pattern}}); };
  };
  EXPECT_THAT(
      refusal("left"),
      ThrowsMessage<MisuseError>(HasSubstr("\"left\" matches no nn::Linear; there are up, down")));
  EXPECT_THAT(refusal("other"),
              ThrowsMessage<MisuseError>(HasSubstr("matches 'other', a torch::nn::LinearImpl, but "
                                                   "only an nn::Linear can have one")));
  for (const auto& one : model.parameters()) EXPECT_TRUE(one.requires_grad()) << "nothing changed";
  nn::add_adapters(model, {.targets = {"up"}});
  EXPECT_THAT(refusal("up"), ThrowsMessage<MisuseError>(EndsWith("'up' has an adapter already")));
  config::Config config = config_of({});
  config.lora = {.rank = 2, .targets = {"lm_head"}};
  EXPECT_THAT([&] { models::make_model(config, mesh_of_one()); },
              ThrowsMessage<ConfigError>(HasSubstr("lora.targets: adapters: \"lm_head\" matches")));
}

}  // namespace
}  // namespace trireme::test
