// Replicas that train on their own and meet now and then, against what they must be equal to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "support/backends.h"
#include "support/local_sgd.h"
#include "trireme/train/claims.h"

namespace trireme::test {
namespace {

using config::SyncKind;
using precision::Training;

/// Rounding of sums in another order, over a few steps of float64.
constexpr double kRounding = 1e-12;

struct Curve {
  Weights weights;                     // that all replicas have in common; of replica 0 in lockstep
  std::vector<double> losses, drifts;  // of meetings
};

Curve train(const config::Config& config, const Degrees& degrees, int64_t steps = 12) {
  Curve curve;
  run_world(kThreads, degrees.world(), [&](const comm::Communicator& world) {
    Training run(config, world, degrees, steps);
    std::vector<double> losses, drifts;
    for (int64_t step = 1; step <= steps; ++step) {
      const auto result = run.step(step);
      if (!result.meeting) continue;
      losses.push_back(result.meeting->loss / result.meeting->weight);
      drifts.push_back(result.meeting->drift);
    }
    Weights weights;
    for (const checkpoint::Item& item : run.trainer.state().items)
      if (item.piece.name.find('/') == std::string::npos)
        weights[item.piece.name] = item.tensor.detach().clone();
    if (world.rank() != 0) return;
    curve = {weights, losses, drifts};
  });
  return curve;
}

double difference(const Weights& a, const Weights& b) {
  double most = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    most = std::max(most, (tensor - b.at(name)).abs().max().item<double>());
  return most;
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  EXPECT_FALSE(a.empty());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

TEST(LocalUpdates, AveragingAfterEveryStepIsDataParallel) {
  for (const int replicas : {2, 3, 9}) {  // of nine, two have no samples
    const Degrees degrees{.replica = replicas};
    const Curve lockstep = train(plain_sgd([](auto&) {}), degrees);
    const Curve average =
        train(plain_sgd([](auto& sync) { sync.kind = SyncKind::Average; }), degrees);
    EXPECT_LE(difference(average.weights, lockstep.weights), kRounding) << replicas;
    EXPECT_EQ(average.drifts.size(), 12u);
    EXPECT_GT(average.drifts.front(), 1e-4) << "the replicas did move on their own";
  }
}

TEST(LocalUpdates, DiLoCoOfOneStepWithAPlainOuterStepIsDataParallel) {
  const Curve lockstep = train(plain_sgd([](auto&) {}), {.replica = 2});
  const Curve diloco = train(plain_sgd([](auto& sync) {
                               sync.kind = SyncKind::DiLoCo;
                               sync.momentum = 0;
                               sync.nesterov = false;
                             }),
                             {.replica = 2});
  EXPECT_LE(difference(diloco.weights, lockstep.weights), kRounding);
}

TEST(LocalUpdates, BmufWithoutMomentumIsAveraging) {
  const auto average = train(plain_sgd([](auto& sync) {
                               sync.kind = SyncKind::Average;
                               sync.every = 3;
                             }),
                             {.replica = 3});
  for (const bool nesterov : {false, true}) {
    const auto bmuf = train(plain_sgd([&](auto& sync) {
                              sync.kind = SyncKind::Bmuf;
                              sync.every = 3;
                              sync.momentum = 0;
                              sync.nesterov = nesterov;
                            }),
                            {.replica = 3});
    EXPECT_LE(difference(bmuf.weights, average.weights), kRounding);
  }
}

TEST(LocalUpdates, SlowMoIsBmufOfScaledVelocity) {  // v of BMUF = -lr x rate x u of SlowMo
  const auto slowmo = train(plain_sgd([](auto& sync) {
                              sync.kind = SyncKind::SlowMo;
                              sync.every = 3;
                              sync.momentum = 0.6;
                              sync.lr = 0.8;
                            }),
                            {.replica = 2});
  const auto bmuf = train(plain_sgd([](auto& sync) {
                            sync.kind = SyncKind::Bmuf;
                            sync.every = 3;
                            sync.momentum = 0.6;
                            sync.lr = 0.8;
                            sync.nesterov = false;
                          }),
                          {.replica = 2});
  EXPECT_LE(difference(slowmo.weights, bmuf.weights), kRounding);
}

TEST(LocalUpdates, AnInnerGroupIsOneReplicaOfSeveralRanks) {
  // Four ranks in two groups are two replicas: each sees the samples of its two ranks.
  auto two = plain_sgd([](auto& sync) {
    sync.kind = SyncKind::DiLoCo;
    sync.every = 3;
    sync.momentum = 0.5;
  });
  two.batch.global = 8;
  auto four = two;
  four.sync.inner_group = 2;
  EXPECT_LE(difference(train(four, {.replica = 4}).weights, train(two, {.replica = 2}).weights),
            kRounding);
}

void check_cut_replicas(const std::string& kind) {
  const auto with = [&](config::ShardedState state, const char* schedule) {
    auto config = plain_sgd([](auto& sync) {
      sync.kind = SyncKind::DiLoCo;
      sync.every = 4;
      sync.momentum = 0.5;
      sync.fragments = 2;
    });
    config.model.kind = kind;
    config.batch.global = 8;
    config.batch.micro = 1;
    config.memory.shard = state;
    config.pipeline.schedule = schedule;
    return config;
  };
  using enum config::ShardedState;
  const Curve expected = train(with(Parameters, "1f1b"), {.replica = 2});
  const std::pair<config::Config, Degrees> cases[] = {
      {with(Parameters, "1f1b"), {.replica = 2, .tensor = 2}},
      {with(Optimizer, "1f1b"), {.replica = 2, .shard = 2}},
      {with(Gradients, "1f1b"), {.replica = 2, .shard = 2}},
      {with(Parameters, "1f1b"), {.replica = 2, .shard = 2}},
      {with(Parameters, "zb-h1"), {.pipe = 2, .replica = 2}}};
  for (const auto& [config, degrees] : cases) {
    const Curve cut = train(config, degrees);
    EXPECT_LE(difference(cut.losses, expected.losses), kRounding) << to_string(degrees);
    EXPECT_LE(difference(cut.drifts, expected.drifts), kRounding) << to_string(degrees);
  }
}

TEST(LocalUpdates, AreTheSameWhateverCutsAReplica) {
  for (const char* kind : {"gpt", "llama"}) check_cut_replicas(kind);
}

TEST(LocalUpdates, APipelineOfOneReplicaRunsTheMicroBatchesOfItsOwnRows) {
  auto config = plain_sgd([](auto& sync) { sync.kind = SyncKind::Average; });
  config.batch.global = 8;  // 4 rows of each replica
  run_world(kThreads, 4, [&](const comm::Communicator& world) {
    Training run(config, world, {.pipe = 2, .replica = 2});
    const auto ranks = run.mesh.samples();
    EXPECT_EQ(run.trainer.num_micros(
                  data::Loader::read(run.data, run.order, ranks.rank(), ranks.size(), 0)),
              2);
  });
}

TEST(LocalUpdates, InSixteenBitsAllReplicasHaveTheSameCommonWeights) {
  auto config = plain_sgd([](auto& sync) {
    sync.kind = SyncKind::DiLoCo;
    sync.every = 2;
  });
  config.optim.kind = config::OptimizerKind::AdamW;
  config.precision.compute = config::Dtype::BFloat16;
  run_world(kThreads, 2, [&](const comm::Communicator& world) {
    Training run(config, world, {.replica = 2}, 4);
    for (int64_t step = 1; step <= 4; ++step) run.step(step);
    for (const auto& shard : run.trainer.shards()) {
      at::Tensor sum = shard.master.detach().clone();
      world.all_reduce(sum).wait();
      EXPECT_TRUE(sum.equal(2 * shard.master)) << shard.name;
      EXPECT_TRUE(shard.weight.equal(shard.master.to(at::kBFloat16))) << shard.name;
    }
  });
}

/// The gradients of one replica overflow in one step of two: it has not moved there.
TEST(LocalUpdates, AStepThatIsSkippedCountsForNothing) {
  auto config = plain_sgd([](auto& sync) {
    sync.kind = SyncKind::Average;
    sync.every = 2;
  });
  config.batch.global = 8;
  config.precision.compute = config::Dtype::Float16;
  run_world(kThreads, 2, [&](const comm::Communicator& world) {
    Training run(config, world, {.replica = 2}, 4);
    at::Tensor victim = run.trainer.parameters().back().tensor;
    unsigned hook = 0;
    if (world.rank() == 1)
      hook = victim.register_hook([](const at::Tensor& gradient) {
        return gradient * std::numeric_limits<double>::infinity();
      });
    const auto first = run.step(1);
    EXPECT_EQ(first.skipped, world.rank() == 1);
    if (world.rank() == 1) victim.remove_hook(hook);
    const auto second = run.step(2);
    ASSERT_TRUE(second.meeting.has_value());
    const double counts = first.skipped ? 0 : first.weight;
    at::Tensor sums =
        torch::tensor({counts + second.weight, counts * first.loss + second.weight * second.loss},
                      torch::kDouble);
    world.all_reduce(sums).wait();
    EXPECT_EQ(second.meeting->weight, sums[0].item<double>());
    EXPECT_NEAR(second.meeting->loss, sums[1].item<double>(), 1e-9);
  });
}

TEST(LocalUpdates, CompressedMeetingsLeaveCopiesOfAWeightAlike) {
  using enum config::Compression;
  const std::pair<Degrees, int64_t> cases[] = {
      {{.replica = 2, .tensor = 2}, 1}, {{.pipe = 2, .replica = 2}, 1}, {{.replica = 4}, 2}};
  for (const auto& [degrees, inner_group] : cases)
    for (const auto kind : {TopK, Int8, PowerSgd}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(degrees), to_string(kind)));
      auto config = plain_sgd([&](auto& sync) {
        sync.kind = SyncKind::Average;
        sync.every = 2;
        sync.inner_group = inner_group;
      });
      config.batch.global = 8;
      config.model.tie = true;
      config.compress.kind = kind;
      config.compress.ratio = 0.1;
      run_world(kThreads, degrees.world(), [&](const comm::Communicator& world) {
        Training run(config, world, degrees);
        for (int64_t step = 1; step <= 4; ++step) run.step(step);
        run.trainer.check_same();
      });
    }
}

TEST(LocalUpdates, EvaluateTheCommonWeightsAndGoOnWithTheirOwn) {
  auto config = plain_sgd([](auto& sync) {
    sync.kind = SyncKind::Average;
    sync.every = 4;
  });
  run_world(kThreads, 2, [&](const comm::Communicator& world) {
    Training watched(config, world, {.replica = 2}), plain(config, world, {.replica = 2});
    const Texts valid;
    const double first = watched.trainer.evaluate(valid, 0).loss;
    for (int64_t step = 1; step <= 6; ++step) {
      watched.step(step);
      plain.step(step);
      const double loss = watched.trainer.evaluate(valid, 0).loss;
      if (step < 4)
        EXPECT_EQ(loss, first) << "no meeting yet";
      else
        EXPECT_LT(loss, first);
    }
    EXPECT_TRUE(precision::same_bits(watched.state(), plain.state()));
  });
}

TEST(LocalUpdates, RefuseWhatDoesNotFit) {
  run_world(kThreads, 2, [&](const comm::Communicator& world) {
    auto config = plain_sgd([](auto& sync) {
      sync.kind = SyncKind::Average;
      sync.inner_group = 3;
    });
    EXPECT_THAT([&] { Training(config, world, {.replica = 2}); },
                ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr(
                    "sync.inner_group = 3 does not divide the 2 replicas: use a divisor")));
    config.sync.inner_group = 2;
    config.compress.kind = config::Compression::Auto;
    EXPECT_THAT([&] { Training(config, world, {.replica = 2}); },
                ::testing::ThrowsMessage<ConfigError>(
                    ::testing::HasSubstr("ranks 0 and 1 of a replica keep the same weights")));
  });
}

TEST(Claims, GiveEveryNumberToOneRank) {
  for (const auto& backend : all_backends()) {
    constexpr int kRanks = 3;
    constexpr int64_t kFirst = 5, kEnd = 105;
    run_world(backend, kRanks, [&](const comm::Communicator& world) {
      at::Tensor mine = at::zeros({kEnd}, at::kLong);
      {
        train::Claims claims(world, kFirst, kEnd);
        while (const auto number = claims.next()) mine[*number] += 1;
        world.barrier();
        if (world.rank() == 0) {
          EXPECT_EQ(claims.reached(), kEnd);
        }
      }
      world.all_reduce(mine).wait();
      EXPECT_TRUE(mine.slice(0, kFirst).eq(1).all().item<bool>());
      EXPECT_EQ(mine.slice(0, 0, kFirst).sum().item<int64_t>(), 0);
    });
  }
}

TEST(Claims, ARankThatFailsIsNamedToTheOthers) {
  for (const int failing : {0, 1})
    run_world(kThreads, 3, [&](const comm::Communicator& world) {
      const auto body = [&] {
        const train::Claims claims(world, 0, 10);
        if (world.rank() == failing) throw Error("its disk is full");
        world.barrier();
      };
      EXPECT_THAT(body, ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
                            world.rank() == failing ? "its disk is full"
                                                    : fmt::format("rank {} (host", failing))));
      if (world.rank() == failing) return;
      EXPECT_THAT(body, ::testing::ThrowsMessage<CommError>(
                            ::testing::HasSubstr("stopped because of an error of its own")));
    });
}

}  // namespace
}  // namespace trireme::test
