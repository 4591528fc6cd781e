// Sharing sequences among ranks must not change the answer: losses, norms and weights of one rank,
// in float64, for every kind, whatever else is cut.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "support/scratch.h"
#include "support/tiny_model.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"
#include "trireme/nn/bind.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using config::ContextKind;
using ::testing::HasSubstr;

constexpr ContextKind kKinds[] = {ContextKind::Ring, ContextKind::Ulysses, ContextKind::Gather};

/// Every kind on 2, 3 and 4 ranks with one more axis at a time; the other ways take turns. One in
/// `every` of them.
void check_contexts(const std::string& kind, int every) {
  using config::Recompute;
  const Recompute recompute[] = {Recompute::None, Recompute::Block, Recompute::Selective,
                                 Recompute::Cheap, Recompute::Sqrt};
  struct Mix {
    int replica, shard, tensor, pipe;
  };
  const Mix mixes[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}};
  const int64_t lengths[] = {8, 9, 11, 13, 15};
  int number = 0;
  for (const ContextKind how : kKinds) {
    for (const int context : {2, 3, 4}) {
      for (const Mix& mix : mixes) {
        ++number;
        const bool few_heads = how == ContextKind::Ulysses && context * mix.tensor > 4;
        const Case one{.replica = mix.replica,
                       .shard = mix.shard,
                       .tensor = mix.tensor,
                       .what = number % 3 == 0   ? config::ShardedState::Gradients
                               : number % 3 == 1 ? config::ShardedState::Optimizer
                                                 : config::ShardedState::Parameters,
                       .sequence = number % 4 != 3,
                       .tie = number % 2 == 0,
                       .masked = number % 3 == 0,
                       .heads = few_heads ? 8 : 4,
                       .kv_heads = number % 2 == 1 ? 2 : 4,
                       .batch = mix.pipe > 1      ? 8
                                : number % 2 == 0 ? 8
                                                  : 5,
                       .recompute = recompute[number % 5],
                       .kind = kind,
                       .seq = lengths[(number + number / 5) % 5],
                       .pipe = mix.pipe,
                       .context = context,
                       .how = how,
                       .documents = number % 4 == 1};
        if (number % every == 0) check(one);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Context, GivesTheAnswerOfOneRankWhateverElseIsCut) {
  check_contexts("gpt", 1);
}

TEST(Context, SharesTheSequencesOfALlama) {
  check_contexts("llama", 2);
}

TEST(Context, WithoutDropoutComputesInFusedBlocks) {
  for (const ContextKind how : kKinds)
    for (const bool documents : {false, true})
      for (const char* kind : {"gpt", "llama"})
        check({.shard = 2,
               .kv_heads = 2,
               .kind = kind,
               .seq = 21,
               .otherwise = "without dropout",
               .change =
                   [](config::Config& config) {
                     config.model.dropout = config.model.attention_dropout = 0;
                   },
               .context = 3,
               .how = how,
               .documents = documents});
}

TEST(Context, OfThreeAxesMore) {
  for (const ContextKind how : kKinds) {
    check({.replica = 2, .tensor = 2, .seq = 9, .context = 2, .how = how});
    check({.shard = 2, .seq = 9, .pipe = 2, .context = 2, .how = how, .documents = true});
    check({.tensor = 2, .seq = 9, .pipe = 2, .context = 2, .how = how});
  }
}

TEST(Context, TheSameOnProcesses) {
  for (const BackendUnderTest& backend : all_backends()) {
    if (backend.threads) continue;
    check({.shard = 2, .kv_heads = 2, .batch = 5, .seq = 9, .context = 2}, backend);
    check({.tensor = 2, .seq = 11, .context = 2, .how = ContextKind::Ulysses, .documents = true},
          backend);
  }
}

TEST(Context, IsProvedAndEvaluatedAsOnOneRank) {
  struct Way {
    Degrees degrees;
    ContextKind how;
  };
  for (const Way& way :
       {Way{{.context = 2}, ContextKind::Ring}, Way{{.context = 2, .tensor = 2}, ContextKind::Ring},
        Way{{.replica = 2, .context = 2}, ContextKind::Ulysses},
        Way{{.pipe = 2, .context = 2}, ContextKind::Gather}}) {
    run_world(kThreads, way.degrees.world(), [&](const Communicator& world) {
      config::Config config = tiny_gpt_config();
      config.model.dropout = 0.1;
      config.context.kind = way.how;
      config.mesh.pipe = way.degrees.pipe;
      const auto report = prove_model(world, config, way.degrees);
      EXPECT_TRUE(report.same()) << to_string(way.degrees) << "\n" << report.text();
      EXPECT_TRUE(report.skipped.empty()) << report.text();
      EXPECT_EQ(report.not_resumed, "");
    });
  }
}

// Blocks are put together in float32: the error is that of one rank in 16 bits.
TEST(Context, IsProvedInThePrecisionOfRealTraining) {
  for (const auto dtype : {verify::Dtype::Float32, verify::Dtype::BFloat16}) {
    for (const ContextKind how : kKinds) {
      run_world(kThreads, 2, [&](const Communicator& world) {
        config::Config config = tiny_gpt_config();
        config.context.kind = how;
        const auto report = prove_model(world, config, {.context = 2}, {.dtype = dtype});
        EXPECT_TRUE(report.same()) << to_string(how) << "\n" << report.text();
      });
    }
  }
}

TEST(Context, RefusesWhatCannotShareASequenceOnEveryRank) {
  run_world(kThreads, 4, [](const Communicator& world) {
    const auto said = [&](const Case& c) -> std::string {
      try {
        models::make_model(config_of(c), Mesh(world, degrees_of(c)));
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_THAT(said({.heads = 3, .kv_heads = 3, .context = 4, .how = ContextKind::Ulysses}),
                HasSubstr("3 heads over tensor 1 are 3 on a rank, fewer than context 4"));
    EXPECT_THAT(said({.kind = "mlp", .context = 4}), HasSubstr("mlp cannot be cut 4 ways along "
                                                               "context"));
  });
}

// Attention of a text of several documents is that of each alone. Positions keep counting.
TEST(Documents, AreNotSeenByEachOther) {
  const auto rotary =
      std::make_shared<const nn::Rotary>(nn::RotaryOptions{.head = 4, .trained_on = 16});
  nn::CausalAttention attention(nn::CausalAttentionImpl::Options{
      .width = 8, .heads = 2, .kv_heads = 1, .head = 4, .rotary = rotary});
  nn::move_to(*attention, at::kDouble, at::kCPU);
  nn::initialize(*attention, 3);
  const at::Tensor x = torch::randn({1, 11, 8}, torch::kDouble);
  nn::Where where;
  where.documents = torch::tensor({0, 0, 0, 0, 4, 4, 4, 4, 4, 9, 9}).view({1, 11});
  const at::Tensor together =
      attention->forward(nn::Flow(x, std::make_shared<const nn::Where>(where))).x();
  for (const auto& [begin, count] : {Range{0, 4}, Range{4, 5}, Range{9, 2}}) {
    nn::Where alone;
    alone.positions = Positions::from(begin);
    const at::Tensor y =
        attention
            ->forward(nn::Flow(x.narrow(1, begin, count), std::make_shared<const nn::Where>(alone)))
            .x();
    EXPECT_LE((together.narrow(1, begin, count) - y).abs().max().item<double>(), 1e-12);
  }
}

/// A run on a mesh that can be left and taken up on another.
struct Leg {
  Leg(const Communicator& world, const Case& on)
      : c(on),
        config(config_of(on)),
        mesh(world, degrees_of(on)),
        trainer(config, mesh,
                train::build([&](const Mesh& to) { return models::make_model(config, to); }, mesh),
                kLast) {}

  std::vector<double> steps(int64_t from, int64_t to) {
    const auto data = train::part_of(std::make_shared<Labelled>(c), config, mesh);
    const data::Order order(3, data->size(), c.batch);
    const auto samples = mesh.samples();
    std::vector<double> losses;
    for (int64_t step = from; step <= to; ++step)
      losses.push_back(trainer
                           .step(step, data::Loader::read(*data, order, samples.rank(),
                                                          samples.size(), step - 1))
                           .loss);
    return losses;
  }

  static constexpr int64_t kLast = 8;
  Case c;
  config::Config config;
  Mesh mesh;
  train::Trainer trainer;
};

TEST(Context, SavesCheckpointsThatFitOtherMeshes) {
  const Case legs[] = {{.seq = 9, .context = 2},
                       {.shard = 2, .seq = 9, .context = 2, .how = ContextKind::Ulysses},
                       {.tensor = 2, .seq = 9},
                       {.seq = 9, .pipe = 2, .context = 2}};
  const Scratch scratch;
  std::vector<double> wanted;
  run_world(kThreads, 1, [&](const Communicator& world) {
    wanted = Leg(world, {.seq = 9}).steps(1, Leg::kLast);
  });
  for (int64_t leg = 0; leg < 4; ++leg)
    run_world(kThreads, degrees_of(legs[leg]).world(), [&](const Communicator& world) {
      at::set_num_threads(1);
      Leg run(world, legs[leg]);
      if (leg > 0) {
        format::Checkpoint saved(scratch / ("run/" + format::step_name(2 * leg)));
        run.trainer.load(saved, run.trainer.own_state());
        run.trainer.restore();
      }
      const auto losses = run.steps(2 * leg + 1, 2 * leg + 2);
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_NEAR(losses[i], wanted[static_cast<std::size_t>(2 * leg) + i], kSame)
            << "leg " << leg;
      checkpoint::Saver saver(scratch / "run", run.mesh, 9);
      saver.save(2 * leg + 2, run.trainer.state());
      EXPECT_EQ(saver.wait(), std::nullopt);
      run.mesh.world().barrier();
    });
}

}  // namespace
}  // namespace trireme::test
