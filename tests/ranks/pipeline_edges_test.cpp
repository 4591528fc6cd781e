// What pipelines must survive: odd models, odd schedules, and steps that throw.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/backends.h"
#include "support/cuts.h"
#include "trireme/core/error.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// x * w, of a weight of its own or of another's.
struct Times : nn::LayerImpl {
  explicit Times(const at::Tensor& other = {}) {
    weight =
        other.defined() ? tied("weight", other) : parameter("weight", {4}, nn::InitRule::normal(1));
  }
  at::Tensor compute(const at::Tensor& x, const nn::Where*) override {
    return at::tanh(x * weight);
  }
  using LayerImpl::compute;
  at::Tensor weight;
};

/// A chain of such layers; `ties[i]`: whose weight the i-th has.
struct TimesModel : nn::ModelImpl {
  explicit TimesModel(const std::vector<int>& ties, bool frozen = false) {
    for (std::size_t i = 0; i < ties.size(); ++i) {
      const auto whose = static_cast<std::size_t>(ties[i]);
      parts.push_back(register_module(
          "part" + std::to_string(i),
          std::make_shared<Times>(whose == i ? at::Tensor() : parts[whose]->weight)));
    }
    to(torch::kDouble);
    if (frozen) parts[0]->weight.requires_grad_(false);
    nn::initialize(*this, 2);
  }
  nn::Chain chain() override {
    nn::Chain chain;
    for (const auto& one : parts)
      chain.links.push_back({.name = one->full_name(), .layers = {one}});
    chain.loss = [this](const nn::Flow& in, const at::Tensor& targets) {
      if (throws) throw Error("the user's loss cannot");
      return nn::Loss{(in.x() - targets).pow(2).sum(), at::tensor(3.0, at::kDouble)};
    };
    return chain;
  }
  std::vector<std::shared_ptr<Times>> parts;
  bool throws = false;
};

const at::Tensor& some_input() {
  static const at::Tensor x = torch::sin(torch::arange(12, torch::kDouble)).view({3, 4});
  return x;
}

/// One step of the model on so many ranks gives every holder the gradient of one rank.
void expect_gradients_of_one_rank(const std::vector<int>& ties, const char* schedule, int ranks,
                                  const parallel::StageSizes& cut) {
  const at::Tensor& x = some_input();
  TimesModel alone(ties);
  const nn::Loss loss = alone.loss(x, x * 2);
  loss.sum.backward();
  const auto expected = alone.named_parameters();
  run_world(kThreads, ranks, [&](const Communicator& world) {
    TimesModel model(ties);
    const auto made = pipeline::make(
        schedule,
        {.ranks = ranks, .micros = 1, .stages_per_rank = static_cast<int>(cut.size()) / ranks});
    parallel::Pipeline pipe(model, Mesh(world, {.pipe = ranks}), made, {.cut = cut});
    for (int step = 0; step < 2; ++step) {
      pipe.run({{x, x * 2}});
      pipe.finish({.divide = parallel::Divide::Later});
      for (const parallel::ParameterShard& one : pipe.shards())
        EXPECT_LE((one.gradient() - expected[one.name].grad()).abs().max().item<double>(), 1e-14)
            << one.name << " on rank " << world.rank();
    }
    pipe.check_same();
  });
}

TEST(PipelineEdges, TiedWeightsThatComeInAnotherOrderElsewhere) {
  expect_gradients_of_one_rank({0, 1, 1, 0}, "1f1b", 2, {2, 3});  // an autoencoder: e1 e2 | d2 d1
  expect_gradients_of_one_rank({0, 1, 2, 2, 1, 0}, "1f1b", 3, {2, 2, 3});
}

TEST(PipelineEdges, StagesOfOneRankThatShareByWayOfAThird) {
  // Rank 0 has stages 0, 2 and 4: the last shares with each of the others, they not.
  expect_gradients_of_one_rank({0, 1, 2, 3, 0, 2, 1}, "interleaved", 2, {1, 1, 1, 1, 2, 2});
  expect_gradients_of_one_rank({0, 1, 1, 0}, "zb-v", 2, {1, 1, 1, 2});
}

TEST(PipelineEdges, TiedWeightsBeginEqualAndFrozenOnesAreSavedOnce) {
  for (const bool frozen : {false, true}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      TimesModel model({0, 1, 0}, frozen);
      {
        const at::NoGradGuard guard;
        model.parts[0]->weight.fill_(world.rank() + 1.0);  // nobody has told them to be alike
      }
      parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2}),
                              pipeline::make("1f1b", {.ranks = 2, .micros = 1}), {.cut = {2, 2}});
      EXPECT_EQ(model.parts[0]->weight[0].item<double>(), 1);
      pipe.check_same();
      const auto& list = frozen ? pipe.frozen() : pipe.shards();
      const auto tied = std::find_if(
          list.begin(), list.end(),
          [](const parallel::ParameterShard& one) { return one.name == "part0.weight"; });
      ASSERT_NE(tied, list.end());
      EXPECT_EQ(tied->reductions[0].counts, world.rank() == 0);
      pipe.run({{some_input(), some_input()}});
      pipe.finish();
    });
  }
}

TEST(PipelineEdges, AStageThatThrowsEndsTheStepEverywhereWithItsOwnWords) {
  for (const BackendUnderTest& backend : all_backends()) {
    run_world(backend, 2, [&](const Communicator& world) {
      TimesModel model({0, 1, 2});
      model.throws = world.rank() == 1;
      parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2}),
                              pipeline::make("1f1b", {.ranks = 2, .micros = 6}));
      const std::vector<nn::MicroBatch> micros(6, {some_input(), some_input()});
      const auto began = std::chrono::steady_clock::now();
      try {
        pipe.run(micros);
        ADD_FAILURE() << "it went on";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("the user's loss cannot"));
        if (world.rank() == 0) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("was at 1F0")));
        }
      }
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
      EXPECT_ANY_THROW(pipe.run(micros)) << "a step that threw is not gone on from";
      EXPECT_ANY_THROW(pipe.finish());
    });
  }
}

TEST(PipelineEdges, AStepIsARunAndAFinish) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    TimesModel model({0, 1, 2});
    parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2}),
                            pipeline::make("gpipe", {.ranks = 2, .micros = 1}));
    const std::vector<nn::MicroBatch> micros(1, {some_input(), some_input()});
    pipe.run(micros);
    EXPECT_THROW(pipe.run(micros), MisuseError);
    EXPECT_THROW(pipe.evaluate(micros), MisuseError);
    pipe.finish();
    EXPECT_THROW(pipe.run({}), MisuseError);
  });
}

TEST(PipelineEdges, RanksThatWouldRunOtherPipelinesAreTold) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    TimesModel model({0, 1, 2});
    try {
      const parallel::Pipeline pipe(
          model, Mesh(world, {.pipe = 2}), pipeline::make("1f1b", {.ranks = 2, .micros = 1}),
          {.cut = world.rank() == 0 ? parallel::StageSizes{1, 3} : parallel::StageSizes{2, 2}});
      ADD_FAILURE() << "it was taken";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("part0 | part1"), HasSubstr("part0, part1 | ")));
    }
  });
}

TEST(PipelineEdges, ACutWithoutAPlaceForAStageIsRefused) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    for (const parallel::StageSizes& cut : {parallel::StageSizes{4, 0}, {-1, 5}, {2, 3}, {4}}) {
      TimesModel model({0, 1, 2});
      EXPECT_THROW(
          parallel::Pipeline(model, Mesh(world, {.pipe = 2}),
                             pipeline::make("1f1b", {.ranks = 2, .micros = 1}), {.cut = cut}),
          MisuseError);
    }
  });
}

TEST(PipelineEdges, AChainMustNameEveryParameterOnce) {
  struct Forgetful : TimesModel {
    Forgetful() : TimesModel({0, 1, 2}) {}
    nn::Chain chain() override {
      nn::Chain chain = TimesModel::chain();
      if (twice)
        chain.links[1].layers = chain.links[0].layers;
      else
        chain.links.pop_back();
      return chain;
    }
    bool twice = false;
  };
  run_world(kThreads, 2, [&](const Communicator& world) {
    for (const bool twice : {false, true}) {
      Forgetful model;
      model.twice = twice;
      try {
        const parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2}),
                                      pipeline::make("1f1b", {.ranks = 2, .micros = 1}));
        ADD_FAILURE() << "it was taken";
      } catch (const MisuseError& error) {
        EXPECT_THAT(error.what(),
                    HasSubstr(twice ? "to one only" : "'part2.weight' belongs to no link"));
      }
    }
  });
}

TEST(PipelineEdges, WeightsMayBeLetGoBetweenForwardAndBackward) {
  const char* const text =
      "0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0RESHARD\n"
      "1UNSHARD,1F0,1B0,1RESHARD,1UNSHARD,1F1,1RESHARD,1UNSHARD,1B1,1RESHARD\n";
  const auto schedule = pipeline::parse_csv("lets go", text);
  const at::Tensor& x = some_input();
  TimesModel alone({0, 1, 2});
  for (int micro = 0; micro < 4; ++micro) alone.loss(x, x * 2).sum.backward();
  run_world(kThreads, 4, [&](const Communicator& world) {
    TimesModel model({0, 1, 2});
    parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2, .shard = 2}), schedule);
    pipe.run(std::vector<nn::MicroBatch>(2, {x, x * 2}));
    pipe.finish({.divide = parallel::Divide::Later});
    for (std::size_t i = 0; i < pipe.parameters().size(); ++i) {
      const auto& wanted = alone.named_parameters()[pipe.parameters()[i].name].grad();
      EXPECT_LE((pipe.gradient(i) - wanted).abs().max().item<double>(), 1e-14);
    }
  });
}

TEST(PipelineEdges, EvaluatesStagesInALoopThoughMuchIsOnItsWay) {
  // 4 MiB a message: more than ranks keep for each other, long before the last.
  const auto x = torch::sin(torch::arange(131072 * 4, torch::kDouble)).view({131072, 4});
  const std::vector<nn::MicroBatch> micros(48, {x, x * 2});
  TimesModel alone({0, 1, 2, 3});
  const torch::NoGradGuard guard;
  const double wanted = 48 * alone.loss(x, x * 2).sum.item<double>();
  for (const char* schedule : {"interleaved", "looped-bfs", "zb-v"}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      TimesModel model({0, 1, 2, 3});
      parallel::Pipeline pipe(
          model, Mesh(world, {.pipe = 2}),
          pipeline::make(schedule, {.ranks = 2, .micros = 4, .stages_per_rank = 2}));
      const auto [sum, weight, correct] = pipe.evaluate(micros);
      const bool last = pipe.schedule().rank_of(3) == world.rank();
      EXPECT_EQ(sum.defined(), last) << schedule;
      if (!last) return;
      EXPECT_NEAR(sum.item<double>(), wanted, 1e-9 * wanted) << schedule;
      EXPECT_EQ(weight.item<double>(), 48 * 3);
    });
  }
}

TEST(PipelineEdges, ATiedWeightDoesNotHoldUpTheReductionsBehindIt) {
  run_world(kThreads, 4, [&](const Communicator& world) {
    TimesModel model({0, 1, 2, 3, 4, 0});  // in a V, rank 0 has the first stage and the last
    parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2, .replica = 2}),
                            pipeline::make("zb-v", {.ranks = 2, .micros = 4}),
                            {.cut = {2, 1, 1, 3}});
    pipe.run(std::vector<nn::MicroBatch>(4, {some_input(), some_input() * 2}));
    pipe.finish();
    if (pipe.schedule().rank_of(0) == world.rank() / 2) {
      EXPECT_EQ(pipe.order(),
                (std::vector<std::string>{"part4.weight", "part1.weight", "part0.weight"}))
          << "it is complete when the first stage is, though it came first";
      EXPECT_EQ(pipe.fires(), (parallel::Fires{{"part0.weight", 2}}));
    }
  });
}

/// Computes its halves itself, so that it can be cut between them.
struct HalvesImpl : nn::LayerImpl {
  HalvesImpl() {
    first = register_module("first", std::make_shared<Times>());
    second = register_module("second", std::make_shared<Times>());
  }
  nn::Flow compute(const nn::Flow& in) override { return right(left(in)); }
  nn::Flow left(const nn::Flow& in) {
    ++lefts;
    return first->forward(in);
  }
  nn::Flow right(const nn::Flow& in) {
    ++rights;
    return second->forward(in);
  }
  std::shared_ptr<Times> first, second;
  int lefts = 0, rights = 0;
};

struct HalvesModel : nn::ModelImpl {
  HalvesModel() {
    block = register_module("block", std::make_shared<HalvesImpl>());
    to(torch::kDouble);
    nn::initialize(*this, 2);
    nn::recompute(*block);
  }
  nn::Chain chain() override {
    nn::Chain chain;
    chain.links.push_back(
        {.name = "block",
         .layers = {block},
         .inside = {{.name = "left",
                     .layers = {block->first},
                     .run = [this](const nn::Flow& in) { return block->left(in); }},
                    {.name = "right", .layers = {block->second}, .run = [this](const nn::Flow& in) {
                       return block->right(in);
                     }}}});
    chain.loss = [](const nn::Flow& in, const at::Tensor& targets) {
      return nn::Loss{(in.x() - targets).pow(2).sum(), at::tensor(3.0, at::kDouble)};
    };
    return chain;
  }
  std::shared_ptr<HalvesImpl> block;
};

TEST(PipelineEdges, ABlockThatIsCutInsideIsRecomputedInParts) {
  const at::Tensor& x = some_input();
  HalvesModel alone;
  alone.loss(x, x * 2).sum.backward();
  EXPECT_EQ(alone.block->lefts, 2);
  run_world(kThreads, 2, [&](const Communicator& world) {
    HalvesModel model;
    parallel::Pipeline pipe(model, Mesh(world, {.pipe = 2}),
                            pipeline::make("1f1b", {.ranks = 2, .micros = 1}), {.cut = {1, 2}});
    pipe.run({{x, x * 2}});
    pipe.finish({.divide = parallel::Divide::Later});
    EXPECT_EQ(model.block->lefts, world.rank() == 0 ? 2 : 0);
    EXPECT_EQ(model.block->rights, world.rank() == 1 ? 2 : 0);
    for (const parallel::ParameterShard& one : pipe.shards())
      EXPECT_TRUE(one.gradient().equal(alone.named_parameters()[one.name].grad())) << one.name;
  });
}

}  // namespace
}  // namespace trireme::test
