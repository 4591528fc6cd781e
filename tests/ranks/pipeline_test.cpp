// Cutting the depth must not change the answer, whatever the schedule and whatever else is cut.
#include "trireme/parallel/pipeline.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/head.h"
#include "trireme/nn/linear.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct NamedSchedule {
  const char* schedule;
  int stages_per_rank;
};
const NamedSchedule kSchedules[] = {{"gpipe", 1},      {"1f1b", 1},  {"interleaved", 2},
                                    {"looped-bfs", 2}, {"zb-h1", 1}, {"zb-v", 2},
                                    {"dualpipe-v", 2}};

/// Every schedule with every degree of the other axes, tied and not, recomputed and not, with
/// micro-batches that are uneven: each pair of these at least once. One in `every` of them.
void check_schedules(const std::string& kind, int every) {
  using config::Recompute;
  const Recompute recompute[] = {Recompute::None,  Recompute::Block, Recompute::Selective,
                                 Recompute::Cheap, Recompute::Sqrt,  Recompute::ExceptLast};
  struct Mix {
    int replica, shard, tensor;
  };
  const Mix mixes[] = {{1, 1, 1}, {1, 1, 2}, {2, 1, 1}, {1, 2, 1}, {2, 1, 2}, {1, 2, 2}};
  int number = 0;
  for (const auto& [schedule, per_rank] : kSchedules) {
    for (const int pipe : {2, 3, 4}) {
      for (int turn = 0; turn < 2; ++turn, ++number) {
        // The other ways take turns.
        const Mix& mix = mixes[(number + number / 6) % 6];
        const int data = mix.replica * mix.shard, micros = 2 * pipe;
        const bool uneven = (number / 2 + number) % 2 == 1;
        Recompute again = recompute[(number + number / 4) % 6];
        if (again == Recompute::ExceptLast && schedule == std::string("gpipe"))
          again = Recompute::Block;  // no backward follows at once
        const Case one{
            .replica = mix.replica,
            .shard = mix.shard,
            .tensor = mix.tensor,
            .what = number % 5 == 0   ? config::ShardedState::Gradients
                    : number % 7 == 0 ? config::ShardedState::Optimizer
                                      : config::ShardedState::Parameters,
            .sequence = number % 3 != 1,
            .tie = turn == 0,
            .masked = number % 4 == 0,
            .kv_heads = number % 4 == 1 ? 2 : 4,
            .batch = 2 * micros * data - (uneven ? 1 : 0),  // a micro-batch has a row less
            .recompute = again,
            .kind = kind,
            .micro = 2,
            .pipe = pipe,
            .stages_per_rank = per_rank,
            .layers = 6,
            .schedule = schedule,
            .balance = {number % 6 == 5 ? config::Balance::By::Time
                                        : config::Balance::By::Parameters},
            .keep_gathered = number % 4 < 2};
        if ((number + number / 2) % every == 0) check(one);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Pipeline, EveryScheduleGivesTheAnswerOfOneRankWhateverElseIsCut) {
  check_schedules("gpt", 1);
}

TEST(Pipeline, RunsALlamaToo) {
  check_schedules("llama", 2);
}

TEST(Pipeline, TheSameOnProcesses) {
  for (const BackendUnderTest& backend : all_backends()) {
    if (backend.threads) continue;
    check({.tie = true, .batch = 11, .pipe = 3, .layers = 3, .schedule = "1f1b"}, backend);
    check({.shard = 2,
           .tie = false,
           .batch = 16,
           .recompute = config::Recompute::Block,
           .pipe = 2,
           .layers = 4,
           .schedule = "zb-v",
           .keep_gathered = false},
          backend);
    check({.kind = "mlp", .pipe = 2, .schedule = "zb-h1"}, backend);
  }
}

/// Width 6, a chain of four links; what the second gives is used by the last, some rows of the
/// labels are counted by a tensor of integers that travels too.
struct SkippingImpl : nn::ModelImpl {
  SkippingImpl() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(6, 6)));
    head = register_module("head", nn::Head(6, 5, nn::HeadImpl::Options{}));
  }
  nn::Chain chain() override {
    using nn::Flow;
    nn::Chain chain;
    chain.links.push_back({.name = "a", .layers = {layers[0].ptr()}, .run = [this](const Flow& in) {
                             const auto x = layers[0]->forward(in.x());
                             // Goes on, is skipped over, counts rows, is used by nobody.
                             return Flow({x, at::tanh(x), at::arange(x.size(0)), x * 2}, in.where);
                           }});
    for (const int i : {1, 2, 3})
      chain.links.push_back({.name = std::string(1, static_cast<char>('a' + i)),
                             .layers = {layers[static_cast<std::size_t>(i)].ptr()},
                             .run = [this, i](const Flow& in) {
                               auto all = in.tensors;
                               all[0] =
                                   at::relu(layers[static_cast<std::size_t>(i)]->forward(all[0]));
                               return Flow(std::move(all), in.where);
                             }});
    chain.head = {.name = "head", .layers = {head.ptr()}};
    chain.loss = [this](const Flow& in, const at::Tensor& targets) {
      core::check(in.where != nullptr &&
                      static_cast<int64_t>(in.where->sample_ids.size()) == targets.size(0) &&
                      in.where->sample_ids.front() % 5 == targets[0].item<int64_t>(),
                  "where is lost");
      core::check(in.tensors[2].equal(at::arange(targets.size(0))), "integers are lost");
      return head->loss(in.with(in.x() + in.tensors[1]), targets);
    };
    return chain;
  }
  std::vector<nn::Linear> layers;
  nn::Head head{nullptr};
};

std::vector<nn::MicroBatch> uneven_micros(const std::vector<int64_t>& rows) {
  std::vector<nn::MicroBatch> micros;
  int64_t first = 0;
  for (const int64_t count : rows) {
    auto where = std::make_shared<nn::Where>();
    for (int64_t i = 0; i < count; ++i) where->sample_ids.push_back(first + i);
    const auto x = torch::sin(torch::arange(first * 6, (first + count) * 6, torch::kDouble));
    micros.push_back({nn::Flow(x.view({count, 6}), std::move(where)),
                      torch::arange(first, first + count).remainder(5)});
    first += count;
  }
  return micros;
}

/// Gradients by name of one rank on the whole, and the loss.
std::map<std::string, at::Tensor> gradients_alone(nn::ModelImpl& model,
                                                  const std::vector<nn::MicroBatch>& micros) {
  double weight = 0;
  for (const nn::MicroBatch& one : micros) {
    const nn::Loss loss = model.loss(one.inputs, one.targets);
    loss.sum.backward();
    weight += loss.weight.item<double>();
  }
  std::map<std::string, at::Tensor> all;
  for (const auto& item : model.named_parameters()) all[item.key()] = item.value().grad() / weight;
  return all;
}

TEST(Pipeline, CarriesSeveralTensorsAndTheirPlacesWhateverTheirShapes) {
  // The third micro-batch has more sample ids than a header holds.
  const std::vector<int64_t> rows = {3, 1, 300, 7};
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const BackendUnderTest& backend : all_backends()) {
      run_world(backend, 3, [&](const Communicator& world) {
        const Mesh mesh(world, {.pipe = 3});
        const auto model = std::make_shared<SkippingImpl>(),
                   alone = std::make_shared<SkippingImpl>();
        for (const auto& one : {model, alone}) {
          one->to(torch::kDouble);
          nn::initialize(*one, 5);
        }
        const auto micros = uneven_micros(rows);
        const auto expected = gradients_alone(*alone, micros);
        parallel::Pipeline pipe(*model, mesh, pipeline::make(schedule, {.ranks = 3, .micros = 4}));
        for (int step = 0; step < 3; ++step) {
          pipe.run(micros);
          const auto totals = pipe.finish();
          EXPECT_EQ(totals.weight, 311);
          for (const parallel::ParameterShard& one : pipe.shards())
            EXPECT_LE((one.gradient() - expected.at(one.name)).abs().max().item<double>(), 1e-14)
                << one.name;
        }
        double expected_sum = 0;
        for (const nn::MicroBatch& one : micros)
          expected_sum += alone->loss(one.inputs, one.targets).sum.item<double>();
        const auto [sum, weight, correct] = pipe.evaluate(micros);
        EXPECT_EQ(sum.defined(), world.rank() == 2);
        if (world.rank() != 2) return;
        EXPECT_NEAR(sum.item<double>(), expected_sum, 1e-11);
        EXPECT_EQ(weight.item<double>(), 311);
      });
    }
  }
}

TEST(Pipeline, KeepsNoMoreMicroBatchesAliveThanTheScheduleSays) {
  for (const int micros : {4, 16}) {
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-v", "interleaved"}) {
      run_world(kThreads, 2, [&](const Communicator& world) {
        const Mesh mesh(world, {.pipe = 2});
        const auto model = std::make_shared<SkippingImpl>();
        model->to(torch::kDouble);
        nn::initialize(*model, 5);
        const auto made = pipeline::make(schedule, {.ranks = 2, .micros = micros});
        parallel::Pipeline pipe(*model, mesh, made);
        pipe.run(uneven_micros(std::vector<int64_t>(static_cast<std::size_t>(micros), 2)));
        pipe.finish();
        const int kept = pipe.peak_in_flight();
        EXPECT_EQ(kept, pipeline::peak_in_flight(made)[static_cast<std::size_t>(world.rank())]);
        if (std::string(schedule) == "gpipe") {
          EXPECT_EQ(kept, micros);
        }
        if (std::string(schedule) == "1f1b") {
          EXPECT_EQ(kept, 2 - world.rank());
        }
      });
    }
  }
}

TEST(Pipeline, AWeightHeldByThreeStagesIsOne) {
  struct Shared : nn::ModelImpl {
    Shared() {
      for (int i = 0; i < 3; ++i) {
        struct Times : nn::LayerImpl {
          explicit Times(const at::Tensor& other) {
            weight = other.defined() ? tied("weight", other)
                                     : parameter("weight", {4}, nn::InitRule::normal(1));
          }
          at::Tensor compute(const at::Tensor& x, const nn::Where*) override {
            return at::tanh(x * weight);
          }
          using LayerImpl::compute;
          at::Tensor weight;
        };
        const auto made = std::make_shared<Times>(i == 0 ? at::Tensor() : first);
        if (i == 0) first = made->weight;
        parts.push_back(register_module("part" + std::to_string(i), made));
      }
    }
    nn::Chain chain() override {
      nn::Chain chain;
      for (const auto& one : parts)
        chain.links.push_back({.name = one->full_name(), .layers = {one}});
      chain.loss = [](const nn::Flow& in, const at::Tensor& targets) {
        return nn::Loss{(in.x() - targets).pow(2).sum(), at::tensor(3.0, at::kDouble)};
      };
      return chain;
    }
    at::Tensor first;
    std::vector<std::shared_ptr<nn::LayerImpl>> parts;
  };
  const auto x = torch::sin(torch::arange(12, torch::kDouble)).view({3, 4});
  const auto alone = std::make_shared<Shared>();
  alone->to(torch::kDouble);
  nn::initialize(*alone, 2);
  const nn::Loss loss = alone->loss(x, x * 2);
  (loss.sum / 3).backward();
  // On three ranks; on two, one of which has two of them (with the part that has only the loss).
  for (const auto& cut : {parallel::StageSizes{1, 1, 2}, {2, 2}}) {
    const int ranks = static_cast<int>(cut.size());
    run_world(kThreads, ranks, [&](const Communicator& world) {
      const auto model = std::make_shared<Shared>();
      model->to(torch::kDouble);
      nn::initialize(*model, 2);
      parallel::Pipeline pipe(*model, Mesh(world, {.pipe = ranks}),
                              pipeline::make("1f1b", {.ranks = ranks, .micros = 1}), {.cut = cut});
      pipe.run({{x, x * 2}});
      pipe.finish();
      ASSERT_EQ(pipe.shards().size(), 1u);
      EXPECT_EQ(pipe.shards()[0].name, "part0.weight");
      EXPECT_EQ(pipe.shards()[0].reductions[0].counts, world.rank() == 0)
          << "counted and saved once";
      EXPECT_LE((pipe.shards()[0].gradient() - alone->first.grad()).abs().max().item<double>(),
                1e-15);
      pipe.check_same();
    });
  }
}

TEST(Pipeline, AParameterOfAnotherStageHasNoMemoryAndSaysWhoseItIs) {
  if (!nn::unbound_reads_throw()) GTEST_SKIP() << "this libtorch cannot tell";
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto model = std::make_shared<SkippingImpl>();
    nn::initialize(*model, 5);
    parallel::Pipeline pipe(*model, Mesh(world, {.pipe = 2}),
                            pipeline::make("gpipe", {.ranks = 2, .micros = 2}));
    const at::Tensor& other = model->layers[world.rank() == 0 ? 3 : 0]->weight;
    EXPECT_FALSE(nn::is_bound(other));
    try {
      (void)other.sum();
      ADD_FAILURE() << "it was read";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("is of a stage that another rank of the pipeline runs"));
    }
  });
}

TEST(Pipeline, AScheduleOfOnesOwnRuns) {
  // Forwards in another order than backwards, by two ranks of two stages each.
  const char* const text =
      "0F1,0F0,2F1,2F0,2B0,2B1,0B0,0B1\n"
      "1F1,1F0,3F1,3F0,3B0,3B1,1I0,1B1,1W0\n";
  const auto schedule = pipeline::parse_csv("mine", text);
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto model = std::make_shared<SkippingImpl>(), alone = std::make_shared<SkippingImpl>();
    for (const auto& one : {model, alone}) {
      one->to(torch::kDouble);
      nn::initialize(*one, 5);
    }
    const auto micros = uneven_micros({2, 3});
    const auto expected = gradients_alone(*alone, micros);
    parallel::Pipeline pipe(*model, Mesh(world, {.pipe = 2}), schedule);
    pipe.run(micros);
    pipe.finish();
    for (const parallel::ParameterShard& one : pipe.shards())
      EXPECT_LE((one.gradient() - expected.at(one.name)).abs().max().item<double>(), 1e-15);
  });
}

TEST(Pipeline, RefusesWhatCannotRunBeforeAnythingIsComputed) {
  const auto refused = [](const pipeline::Schedule& schedule, int ranks) {
    std::string said;
    run_world(kThreads, ranks, [&](const Communicator& world) {
      const auto model = std::make_shared<SkippingImpl>();
      nn::initialize(*model, 5);
      try {
        const parallel::Pipeline pipe(*model, Mesh(world, {.pipe = ranks}), schedule);
        ADD_FAILURE() << "it was taken";
      } catch (const Error& error) {
        if (world.rank() == 0) said = error.what();
      }
    });
    return said;
  };
  EXPECT_THAT(refused(pipeline::make("1f1b", {.ranks = 3, .micros = 2}), 2),
              AllOf(HasSubstr("for 3 ranks"), HasSubstr("pipe 2")));
  EXPECT_THAT(refused(pipeline::make("1f1b", {.ranks = 6, .micros = 2}), 6),
              AllOf(HasSubstr("6 stages"), HasSubstr("chain of 5")));
  EXPECT_THAT(refused(pipeline::make("pipedream", {.ranks = 2, .micros = 2}), 2),
              HasSubstr("0UPDATE"));
  EXPECT_THAT(refused(pipeline::parse_csv("stuck", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"), 2),
              HasSubstr("0B0"));
}

}  // namespace
}  // namespace trireme::test
