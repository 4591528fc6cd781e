// Training while activations between stages, or weights when they are gathered, travel in fewer
// bytes: the losses stay near, the bytes are as many as the formula says, and the ranks agree.
#include <torch/torch.h>

#include <cmath>

#include "support/backends.h"
#include "support/tiny_training.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using config::Narrow;
using config::ShardedState;
using precision::gpt_config;
using precision::Training;

constexpr Narrow kAll[] = {Narrow::Fp16, Narrow::Bf16, Narrow::Int8};
constexpr int64_t kSteps = 12;

/// How far the loss may be from that of a run whose tensors travel as they are, after 12 steps:
/// some ten times the relative error of one rounding (2^-11, 2^-8, 1/254), because every layer adds
/// its own. Losses are between 1 and 3.
double near_enough(Narrow narrow) {
  switch (narrow) {
    case Narrow::None: return 0;
    case Narrow::Fp16: return 0.005;
    case Narrow::Bf16: return 0.04;
    case Narrow::Int8: break;
  }
  return 0.04;
}

struct Outcome {
  std::vector<double> losses;
  int64_t moved_bytes = 0;  ///< received by all ranks in the last step
};

/// Trains on the mesh; the losses of all steps and what the last one moved.
Outcome train_on(const Communicator& world, const Degrees& degrees, const config::Config& config) {
  Training run(config, world, degrees, kSteps);
  Outcome outcome;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const int64_t before = world.traffic().received_bytes;
    outcome.losses.push_back(run.step(step).loss);
    run.trainer.check_same();
    if (step < kSteps) continue;
    at::Tensor moved = torch::tensor({world.traffic().received_bytes - before}, at::kLong);
    world.all_reduce(moved).wait();
    outcome.moved_bytes = moved.item<int64_t>();
  }
  return outcome;
}

void expect_near(const Outcome& narrow, const Outcome& plain, Narrow how) {
  ASSERT_EQ(narrow.losses.size(), plain.losses.size());
  for (std::size_t i = 0; i < plain.losses.size(); ++i)
    EXPECT_NEAR(narrow.losses[i], plain.losses[i], near_enough(how)) << to_string(how) << i;
  EXPECT_NE(narrow.losses, plain.losses) << to_string(how) << " has no effect";
  EXPECT_LT(narrow.losses.back(), narrow.losses.front());
}

/// What so many numbers of float32 take.
int64_t bytes_of(Narrow how, int64_t count) {
  switch (how) {
    case Narrow::None: return 4 * count;
    case Narrow::Fp16:
    case Narrow::Bf16: return 2 * count;
    case Narrow::Int8: break;
  }
  return count + 4 * ((count + 255) / 256);
}

TEST(NarrowTransfers, KeepTheLossAndMoveFewerBytes) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      const auto run = [&](Narrow how) {
        return train_on(world, {.pipe = 2},
                        gpt_config(config::Dtype::Float32, {{}, [&](auto& config) {
                                                              config.pipeline.schedule = schedule;
                                                              config.compress.transfers = how;
                                                            }}));
      };
      const Outcome plain = run(Narrow::None);
      for (const Narrow how : kAll) {
        const Outcome narrow = run(how);
        expect_near(narrow, plain, how);
        // 4 micro-batches of 2 rows of 4 tokens, there and back.
        const int64_t elements = 2 * 4 * 16, tensors = 2 * 4;
        EXPECT_EQ(plain.moved_bytes - narrow.moved_bytes,
                  tensors * (bytes_of(Narrow::None, elements) - bytes_of(how, elements)));
      }
    });
  }
}

TEST(NarrowTransfers, AreTheSameOnAllRanksOfTheTensorAxis) {
  run_world(kThreads, 4, [&](const Communicator& world) {
    const auto run = [&](Narrow how) {
      return train_on(world, {.pipe = 2, .tensor = 2},
                      gpt_config(config::Dtype::Float32, {{}, [&](auto& config) {
                                                            config.tensor.sequence = false;
                                                            config.compress.transfers = how;
                                                          }}));
    };
    expect_near(run(Narrow::Int8), run(Narrow::None), Narrow::Int8);
  });
}

/// One micro-batch: with several, scattered gradients are added in another order than whole ones.
config::Config sharded_config(ShardedState state, Narrow how) {
  return gpt_config(config::Dtype::Float32, {{}, [&](auto& config) {
                                               config.batch.micro = 8;
                                               config.memory.shard = state;
                                               config.compress.gathers = how;
                                             }});
}

TEST(NarrowGathers, KeepTheLossAndGiveTheSameBitsWhateverIsSharded) {
  for (const Degrees& degrees : {Degrees{.shard = 2}, Degrees{.replica = 2, .shard = 2}}) {
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      const Outcome plain =
          train_on(world, degrees, sharded_config(ShardedState::Optimizer, Narrow::None));
      for (const Narrow how : kAll) {
        const Outcome first =
            train_on(world, degrees, sharded_config(ShardedState::Optimizer, how));
        expect_near(first, plain, how);
        for (const ShardedState state : {ShardedState::Gradients, ShardedState::Parameters})
          EXPECT_EQ(train_on(world, degrees, sharded_config(state, how)).losses, first.losses)
              << to_string(how);
      }
    });
  }
}

/// Weights that stay whole are gathered once in a step: each rank's shards go to the other.
TEST(NarrowGathers, MoveAsManyBytesAsTheFormulaSays) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Outcome plain =
        train_on(world, {.shard = 2}, sharded_config(ShardedState::Gradients, Narrow::None));
    for (const Narrow how : kAll) {
      Training run(sharded_config(ShardedState::Gradients, how), world, {.shard = 2});
      int64_t saved = 0;
      for (const auto& shard : run.trainer.shards())
        saved += bytes_of(Narrow::None, shard.weight.numel()) - bytes_of(how, shard.weight.numel());
      at::Tensor all = torch::tensor({saved}, at::kLong);
      world.all_reduce(all).wait();
      const Outcome narrow =
          train_on(world, {.shard = 2}, sharded_config(ShardedState::Gradients, how));
      EXPECT_EQ(plain.moved_bytes - narrow.moved_bytes, all.item<int64_t>()) << to_string(how);
    }
  });
}

/// Gathers take their random numbers from the values, so that a run that continues from a state
/// rounds as the first one did.
TEST(NarrowGathers, RoundAlikeAfterAResume) {
  for (const ShardedState state : {ShardedState::Optimizer, ShardedState::Parameters}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      const auto config = sharded_config(state, Narrow::Int8);
      Training first(config, world, {.shard = 2});
      for (int64_t step = 1; step <= 3; ++step) first.step(step);
      Training second(config, world, {.shard = 2});
      const checkpoint::State from = first.trainer.state(), to = second.trainer.state();
      for (std::size_t i = 0; i < to.items.size(); ++i)
        at::Tensor(to.items[i].tensor).detach().copy_(from.items[i].tensor);
      second.trainer.restore(from.extra);
      for (int64_t step = 4; step <= 6; ++step) {
        const double expected = first.step(step).loss;
        EXPECT_EQ(second.step(step).loss, expected) << step;
      }
      EXPECT_TRUE(precision::same_bits(first.state(), second.state()));
    });
  }
}

/// What layers compute with is rounded, also where the rank's own shard is; what the optimizer
/// updates is not.
TEST(NarrowGathers, EveryRankComputesWithWhatTheOthersDecode) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    Training run(sharded_config(ShardedState::Optimizer, Narrow::Bf16), world, {.shard = 2});
    for (int64_t step = 1; step <= 3; ++step) run.step(step);
    run.trainer.check_same();
    bool rounded = false;
    for (const auto& shard : run.trainer.shards()) {
      EXPECT_FALSE(shard.weight.is_same(shard.master));
      EXPECT_TRUE(
          shard.weight.detach().equal(shard.master.detach().to(at::kBFloat16).to(at::kFloat)));
      rounded = rounded || !shard.weight.detach().equal(shard.master.detach());
    }
    EXPECT_TRUE(rounded);
  });
}

TEST(Narrow, BothAtOnceInAPipelineOfShardedStages) {
  const Degrees degrees = {.pipe = 2, .shard = 2};
  run_world(kThreads, 4, [&](const Communicator& world) {
    for (const bool keep : {true, false}) {
      const auto run = [&](Narrow how) {
        return train_on(world, degrees,
                        gpt_config(config::Dtype::Float32, {{}, [&](auto& config) {
                                                              config.pipeline.keep_gathered = keep;
                                                              config.compress.transfers =
                                                                  config.compress.gathers = how;
                                                            }}));
      };
      expect_near(run(Narrow::Int8), run(Narrow::None), Narrow::Int8);
    }
  });
}

}  // namespace
}  // namespace trireme::test
