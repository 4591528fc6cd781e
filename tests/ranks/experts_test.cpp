// Dealing experts to ranks must not change the answer: losses, norms and weights of one rank, in
// float64, for expert beside every other axis.
#include "trireme/nn/experts.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/registry.h"
#include "support/cuts.h"

namespace trireme::test {
namespace {

/// A mixture of 4 experts, of which a token sees two.
Case mixture(Case c) {
  c.kind = "moe-gpt";
  const auto more = std::exchange(c.change, {});
  c.change = [more](config::Config& config) {
    config.model.experts = 4;
    config.model.expert_ffn = 10;
    config.model.balance = 0.02;
    config.model.z_loss = 0.01;
    config.model.expert_dropout = 0.1;
    if (more) more(config);
  };
  return c;
}

Case with_capacity(Case c) {
  c.otherwise = "capacity";
  c.change = [](config::Config& config) { config.model.capacity = 0.8; };
  return mixture(c);
}

TEST(Experts, BesideReplicas) {
  check(mixture({.replica = 2}));
  check(mixture({.replica = 2, .masked = true, .batch = 5, .expert = 2}));
  check(mixture({.replica = 4, .batch = 5, .expert = 4}));
  check(mixture({.replica = 4, .batch = 5, .expert = 2}));
  check(with_capacity({.replica = 2, .expert = 2}));
}

TEST(Experts, BesideShards) {
  for (const auto what : {config::ShardedState::Optimizer, config::ShardedState::Gradients,
                          config::ShardedState::Parameters}) {
    check(mixture({.shard = 2, .what = what, .masked = true, .batch = 5, .expert = 2}));
    check(mixture({.replica = 2, .shard = 2, .what = what, .expert = 2}));
    check(mixture({.replica = 2, .shard = 2, .what = what, .expert = 4}));
  }
  check(with_capacity({.shard = 4, .batch = 5, .expert = 2}));
}

TEST(Experts, BesideTensor) {
  for (const bool sequence : {true, false}) {
    check(mixture({.replica = 2, .tensor = 2, .sequence = sequence, .masked = true, .expert = 2}));
    check(with_capacity({.tensor = 2, .sequence = sequence, .batch = 5}));
  }
  check(mixture({.shard = 2, .tensor = 2, .batch = 5, .expert = 2}));
  check(with_capacity({.replica = 2, .tensor = 2, .expert = 2}));
}

TEST(Experts, BesideAPipeline) {
  check(mixture({.replica = 2, .masked = true, .batch = 5, .pipe = 2, .expert = 2}));
  check(mixture({.shard = 2, .pipe = 2, .expert = 2}));
  check(mixture({.replica = 2, .pipe = 2, .expert = 2, .schedule = "zb-h1"}));
  check(with_capacity({.replica = 2, .pipe = 2, .expert = 2}));
}

TEST(Experts, BesideContext) {
  for (const auto how : {config::ContextKind::Ring, config::ContextKind::Ulysses}) {
    check(mixture({.batch = 5, .seq = 9, .expert = 2, .context = 2, .how = how}));
    check(mixture({.replica = 2,
                   .masked = true,
                   .batch = 5,
                   .seq = 11,
                   .expert = 4,
                   .context = 2,
                   .how = how,
                   .documents = true}));
    check(mixture({.shard = 2,
                   .recompute = config::Recompute::Block,
                   .expert = 2,
                   .context = 2,
                   .how = how}));
    check(
        with_capacity({.tensor = 2, .batch = 5, .seq = 13, .expert = 2, .context = 2, .how = how}));
    check(mixture({.tensor = 2, .pipe = 2, .expert = 2, .context = 2, .how = how}));
  }
  check(with_capacity({.batch = 5, .seq = 13, .expert = 1, .context = 3}));
}

TEST(Experts, ComputeWhileTokensTravelIfTheKeySaysSo) {
  for (const bool overlap : {false, true}) {
    config::Config config;
    config.model.kind = "moe-gpt";
    config.comm.overlap_experts = overlap;
    int found = 0;
    for (const auto& one : models::make_whole(config, Degrees{})->modules())
      if (const auto* experts = dynamic_cast<const nn::ExpertsImpl*>(one.get())) {
        EXPECT_EQ(experts->options().overlaps, overlap);
        ++found;
      }
    EXPECT_EQ(found, config.model.layers);
  }
}

TEST(Experts, ThatComputeWhileTokensTravel) {
  const auto overlapped = [](Case c) {
    c.change = [](config::Config& config) { config.comm.overlap_experts = true; };
    return mixture(c);
  };
  check(overlapped({.replica = 2, .masked = true, .batch = 5, .expert = 2}));
  check(overlapped({.replica = 4, .batch = 5, .recompute = config::Recompute::Block, .expert = 4}));
  check(overlapped({.shard = 2, .tensor = 2, .batch = 5, .expert = 2}));
  check(overlapped({.replica = 2, .pipe = 2, .expert = 2, .schedule = "zb-h1"}));
  check(overlapped({.replica = 2,
                    .batch = 16,
                    .pipe = 2,
                    .stages_per_rank = 2,
                    .expert = 2,
                    .layers = 4,
                    .schedule = "dualpipe-v"}));
}

TEST(Experts, OfEveryKindOfRouter) {
  using Kind = config::RouterKind;
  for (const Kind kind : {Kind::Normalised, Kind::SigmoidBias, Kind::Grouped}) {
    Case c{.replica = 2, .tensor = 2, .masked = true, .batch = 5, .expert = 2};
    c.otherwise = to_string(kind);
    c.change = [kind](config::Config& config) {
      config.model.router = kind;
      config.model.bias_rate = 0.05;  // choices change from step to step
      if (kind != Kind::Normalised) config.model.router_groups = config.model.router_top_groups = 2;
      if (kind == Kind::Grouped) config.model.top_k = config.model.router_top_groups = 1;
      config.model.shared_experts = 1;
      config.model.expert_gated = true;
    };
    check(mixture(c));
    c.pipe = 2;
    c.tensor = 1;
    check(mixture(c));
  }
}

TEST(Experts, In16BitsLearnAsInFloat64) {
  // Roundings may send a token elsewhere, so that losses agree only to the precision of bfloat16.
  constexpr double kClose = 0.02;
  for (const auto what : {config::ShardedState::Optimizer, config::ShardedState::Parameters}) {
    Case c{.shard = 2, .what = what, .batch = 5, .expert = 2};
    const Outcome& exact = alone(mixture(c));
    c.dtype = config::Dtype::BFloat16;
    const Case half = mixture(c);
    run_world(kThreads, 2, [&](const comm::Communicator& world) {
      at::set_num_threads(1);
      const Outcome got = train(half, Mesh(world, degrees_of(half)));
      for (std::size_t i = 0; i < got.losses.size(); ++i)
        EXPECT_NEAR(got.losses[i], exact.losses[i], kClose) << "step " << i + 1;
    });
  }
}

TEST(Experts, ThatTravelCompressedTrain) {
  // Gradients of experts are summed over other ranks than the rest: the compressor keeps them
  // apart.
  Case c{.replica = 4, .batch = 8, .expert = 2};
  c.otherwise = "int8";
  c.change = [](config::Config& config) {
    config.precision.compute = config.precision.reduce = config::Dtype::Float32;
    config.compress.kind = config::Compression::Int8;
  };
  const Case compressed = mixture(c);
  const Outcome& exact = alone(mixture({.replica = 4, .batch = 8, .expert = 2}));
  run_world(kThreads, 4, [&](const comm::Communicator& world) {
    at::set_num_threads(1);
    const Outcome got = train(compressed, Mesh(world, degrees_of(compressed)));
    for (std::size_t i = 0; i < got.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], exact.losses[i], 0.02) << "step " << i + 1;
  });
}

TEST(Experts, OfALlama) {
  Case c{.shard = 2, .tensor = 2, .batch = 5, .expert = 2};
  const Case all = mixture(c);
  c = all;
  c.kind = "moe-llama";
  check(c);
}

TEST(Experts, WhenBlocksAreRecomputed) {
  for (const auto what : {config::Recompute::Block, config::Recompute::Selective,
                          config::Recompute::Cheap, config::Recompute::Sqrt})
    check(mixture({.shard = 2, .recompute = what, .expert = 2}));
}

}  // namespace
}  // namespace trireme::test
