// Replicas that train on their own and meet now and then, against what they must be equal to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>
#include <sstream>

#include "support/backends.h"
#include "support/scratch.h"
#include "support/tiny_training.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/train/claims.h"

namespace trireme::test {
namespace {

using config::SyncKind;
using precision::Training;

/// Rounding of sums in another order, over a few steps of float64.
constexpr double kRounding = 1e-12;

/// Plain SGD in float64: the update is linear in the gradient, as the identities need.
config::Config plain_sgd(const std::function<void(config::Sync&)>& sync) {
  config::Config config = tiny_gpt_config();
  config.batch.global = 7;  // unequal replicas: means must be weighted by tokens
  config.batch.micro = 2;
  config.precision.compute = config::Dtype::Float64;
  config.optim.kind = config::OptimizerKind::Sgd;
  config.optim.lr = 0.1;
  config.optim.momentum = 0;
  config.optim.clip = 0;
  config.optim.weight_decay = 0.1;
  config.optim.schedule = config::RateSchedule::Constant;
  sync(config.sync);
  return config;
}

/// The weights that all replicas have in common, by name; those of replica 0 in lockstep.
using Weights = std::map<std::string, at::Tensor>;

struct Curve {
  Weights weights;
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

TEST(LocalUpdates, AreTheSameWhateverCutsAReplica) {
  const auto with = [](config::ShardedState state, const char* schedule) {
    auto config = plain_sgd([](auto& sync) {
      sync.kind = SyncKind::DiLoCo;
      sync.every = 4;
      sync.momentum = 0.5;
      sync.fragments = 2;
    });
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

std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> all;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) all.push_back(std::stoll(word));
  return all;
}

/// What compressed meetings have not sent yet, as weight x move, added up over all ranks in whole
/// parameters. Names tell the place:
/// replica.0/meeting/residual/MESH/rank.1/NAME@OFFSET:SHAPE:BEGIN.
void add_unsent(Weights& to, const train::Trainer& trainer) {
  static std::mutex mutex;
  const checkpoint::State state = trainer.state();
  const std::lock_guard lock(mutex);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const checkpoint::Item& item : state.items) shapes[item.piece.name] = item.piece.whole;
  const auto replica = static_cast<std::size_t>(trainer.replicas()->index());
  const auto& fragments = state.extra.at("replicas").at(replica).at("local").at("reducers").at(0);
  for (const checkpoint::Item& item : state.items) {
    const std::string& path = item.piece.name;
    const bool unsent = path.find("/meeting/unsent/") != path.npos;
    if (!unsent && path.find("/meeting/residual/") == path.npos) continue;
    if (path.find(".repeat/") != path.npos) continue;
    const auto begin = path.find('/', path.find("/rank.") + 1) + 1, at = path.rfind('@');
    const std::string name = path.substr(begin, at - begin), place = path.substr(at + 1);
    const auto shape = place.find(':'), first = place.rfind(':');
    at::Tensor& whole = to[name];
    if (!whole.defined()) whole = at::zeros(shapes.at(name), at::kDouble);
    const at::Tensor box =
        nn::box_of(whole, {numbers_in(place.substr(0, shape)),
                           numbers_in(place.substr(shape + 1, first - shape - 1))});
    const at::Tensor flat = box.reshape({-1}).clone();
    const std::size_t fragment = state.extra.at("sync").at("fragment_of").at(name);
    flat.narrow(0, std::stoll(place.substr(first + 1)), item.tensor.numel())
        .add_(item.tensor.reshape({-1}),
              unsent ? 1.0 : 1 / fragments.at(fragment).at("unit").get<double>());
    box.copy_(flat.view(box.sizes()));
  }
}

void expect_same_unsent(const Weights& saved, const Weights& loaded) {
  double most = 0;
  for (const auto& [name, whole] : saved) {
    const double size = whole.abs().max().item<double>();
    most = std::max(most, size);
    ASSERT_TRUE(loaded.contains(name)) << name;
    EXPECT_LE((whole - loaded.at(name)).abs().max().item<double>(), 1e-12 * size) << name;
  }
  EXPECT_GT(most, 0);
}

TEST(LocalUpdates, OtherReplicasKeepTheSumOfWhatMeetingsHaveNotSent) {
  using enum config::Compression;
  struct Case {
    Degrees degrees;
    int64_t every = 3, fragments = 1, inner_group = 1;
    config::Compression kind = TopK;
  };
  const auto config_of = [](const Case& c, config::Compression kind) {
    auto config = plain_sgd([&](auto& sync) {
      sync.kind = SyncKind::DiLoCo;
      sync.every = c.every;
      sync.fragments = c.fragments;
      sync.inner_group = c.inner_group;
    });
    config.batch.global = 12;
    config.compress.kind = kind;
    config.compress.ratio = 0.1;
    return config;
  };
  const std::vector<Case> from = {{.degrees = {.replica = 2, .tensor = 2}},
                                  {.degrees = {.replica = 2, .shard = 2}, .fragments = 2},
                                  {.degrees = {.replica = 4}, .inner_group = 2, .kind = Int8}};
  const std::vector<Case> to = {{.degrees = {.replica = 3}},
                                {.degrees = {.replica = 1, .tensor = 2}},
                                {.degrees = {.replica = 4}},
                                {.degrees = {.replica = 2, .shard = 2}, .every = 1},
                                {.degrees = {.pipe = 2, .replica = 2}, .fragments = 3}};
  for (const Case& before : from) {
    const auto kind = before.kind;
    const Scratch scratch;
    Weights saved;
    run_world(kThreads, before.degrees.world(), [&](const comm::Communicator& world) {
      Training run(config_of(before, kind), world, before.degrees);
      for (int64_t step = 1; step <= 4; ++step) run.step(step);
      add_unsent(saved, run.trainer);
      checkpoint::Saver saver(scratch / "run", run.mesh, 1);
      saver.save(4, run.trainer.state());
      EXPECT_EQ(saver.wait(), std::nullopt);
    });
    for (const Case& after : to) {
      SCOPED_TRACE(fmt::format("{} from {} to {}", to_string(kind), to_string(before.degrees),
                               to_string(after.degrees)));
      Weights loaded;
      run_world(kThreads, after.degrees.world(), [&](const comm::Communicator& world) {
        Training run(config_of(after, kind), world, after.degrees);
        checkpoint::load_newest(scratch / "run", world,
                                [&, own = run.trainer.own_state()](format::Checkpoint& one) {
                                  run.trainer.load(one, own);
                                });
        EXPECT_THAT(run.trainer.restore(), ::testing::HasSubstr("not sent yet is kept"));
        add_unsent(loaded, run.trainer);
        for (int64_t step = 5; step <= 6; ++step) run.step(step);
        run.trainer.check_same();
      });
      expect_same_unsent(saved, loaded);
    }
  }
}

TEST(LocalUpdates, OtherCompressionKeepsTheSumOfWhatMeetingsHaveNotSent) {
  using enum config::Compression;
  const Scratch scratch;
  const auto config_of = [](config::Compression kind, int64_t every) {
    auto config = plain_sgd([&](auto& sync) {
      sync.kind = SyncKind::Average;
      sync.every = every;
    });
    config.batch.global = 12;
    config.compress.kind = kind;
    config.compress.ratio = 0.1;
    return config;
  };
  /// What was not sent, after loading `from` and `steps` steps; saved to `to` if it has a name.
  const auto unsent_after = [&](const config::Config& config, int replicas, const std::string& from,
                                const std::string& to, int64_t steps) {
    Weights all;
    run_world(kThreads, replicas, [&](const comm::Communicator& world) {
      Training run(config, world, {.replica = replicas});
      if (!from.empty()) {
        checkpoint::load_newest(scratch / from, world,
                                [&, own = run.trainer.own_state()](format::Checkpoint& one) {
                                  run.trainer.load(one, own);
                                });
        run.trainer.restore();
      }
      for (int64_t step = from.empty() ? 1 : 5; step <= 4 + steps; ++step) run.step(step);
      add_unsent(all, run.trainer);
      if (to.empty()) return;
      checkpoint::Saver saver(scratch / to, run.mesh, 1);
      saver.save(4 + steps, run.trainer.state());
      EXPECT_EQ(saver.wait(), std::nullopt);
    });
    return all;
  };
  const Weights saved = unsent_after(config_of(TopK, 2), 2, "", "topk", 0);
  expect_same_unsent(saved, unsent_after(config_of(Int8, 2), 2, "topk", "", 0));
  // PowerSGD keeps none for gradients with one dim: these wait, too.
  expect_same_unsent(saved, unsent_after(config_of(PowerSgd, 2), 2, "topk", "", 0));
  // Without compression it waits for the next meeting, and may be saved until then.
  expect_same_unsent(saved, unsent_after(config_of(None, 4), 2, "topk", "none", 1));
  for (const int replicas : {2, 3})
    for (const auto kind : {None, TopK}) {
      SCOPED_TRACE(fmt::format("{} replicas, {}", replicas, to_string(kind)));
      expect_same_unsent(saved, unsent_after(config_of(kind, 4), replicas, "none", "", 0));
    }
  // `auto` has not chosen yet: the first meeting sends everything as it is, but not residuals.
  expect_same_unsent(saved, unsent_after(config_of(Auto, 1), 3, "topk", "", 1));
  // The meeting of a run without compression sends them.
  for (const auto& [name, rest] : unsent_after(config_of(None, 1), 3, "topk", "", 1))
    EXPECT_EQ(rest.abs().max().item<double>(), 0) << name;
}

TEST(LocalUpdates, OtherReplicasKeepACountThatAllHaveAlike) {
  const Scratch scratch;
  const auto config = plain_sgd([](auto& sync) { sync.kind = SyncKind::Average; });
  // 7 / 3 + 7 / 3 + 7 / 3 is less than 7 in floating point.
  for (const auto& [replicas, seen] : {std::pair{3, 7}, std::pair{2, 0}})
    run_world(kThreads, replicas, [&](const comm::Communicator& world) {
      Training run(config, world, {.replica = replicas});
      auto& count = run.trainer.attached().modules().front()->register_buffer(
          "seen", at::full({}, seen, at::kLong));
      if (seen > 0) {
        checkpoint::Saver saver(scratch / "run", run.mesh, 1);
        saver.save(1, run.trainer.state());
        EXPECT_EQ(saver.wait(), std::nullopt);
        return;
      }
      checkpoint::load_newest(scratch / "run", world,
                              [&, own = run.trainer.own_state()](format::Checkpoint& one) {
                                run.trainer.load(one, own);
                              });
      EXPECT_EQ(count.item<int64_t>(), 7);
    });
}

TEST(LocalUpdates, EvaluateTheCommonWeightsAndGoOnWithTheirOwn) {
  auto config = plain_sgd([](auto& sync) {
    sync.kind = SyncKind::Average;
    sync.every = 4;
  });
  run_world(kThreads, 2, [&](const comm::Communicator& world) {
    Training watched(config, world, {.replica = 2}), plain(config, world, {.replica = 2});
    const Texts valid;
    const double first = watched.trainer.evaluate(valid, 0);
    for (int64_t step = 1; step <= 6; ++step) {
      watched.step(step);
      plain.step(step);
      const double loss = watched.trainer.evaluate(valid, 0);
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
