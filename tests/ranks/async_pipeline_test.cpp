// Asynchronous pipelines against one process that applies the papers' delays explicitly.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <optional>

#include "support/delayed_reference.h"
#include "support/sentence.h"
#include "trireme/comm/texts.h"
#include "trireme/nn/bind.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/train/stages.h"
#include "trireme/verify/verify.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kAsyncSteps = 9;

struct AsyncCase {
  const char* schedule = "pipedream";
  int pipe = 2, micros = 1, replica = 1, tensor = 1;
  config::OptimizerKind optimizer = config::OptimizerKind::AdamW;
  bool vertical = false, by_delay = false;
  config::Recompute recompute = config::Recompute::None;
  int drain_every = 0;                   ///< 0: only at the end
  std::optional<std::size_t> left = {};  ///< steps that are not taken at once; none: Trainer::lag
  int64_t lost_rows = 0;
  std::string kind = "gpt";
};

Case cut_of(const AsyncCase& c) {
  return {.replica = c.replica,
          .tensor = c.tensor,
          .tie = false,
          .masked = true,
          .batch = 2 * c.micros * c.replica - c.lost_rows,
          .recompute = c.recompute,
          .kind = c.kind,
          .pipe = c.pipe,
          .layers = 4,
          .schedule = c.schedule};
}

config::Config config_of(const AsyncCase& c) {
  config::Config config = config_of(cut_of(c));
  config.run.device = config::Device::Cpu;
  config.optim.clip = 0;
  config.optim.kind = c.optimizer;
  config.optim.lr = c.optimizer == config::OptimizerKind::Sgd ? 0.1 : 0.01;
  config.optim.schedule = config::RateSchedule::Constant;
  config.optim.warmup = 0;
  config.pipeline.vertical_sync = c.vertical;
  config.pipeline.lr_by_delay = c.by_delay;
  return config;
}

std::string describe(const AsyncCase& c) {
  return fmt::format(
      "{} pipe {} micros {} replica {} tensor {} {} vertical {} by delay {} drains {}", c.schedule,
      c.pipe, c.micros, c.replica, c.tensor,
      c.optimizer == config::OptimizerKind::Sgd ? "sgd" : "adamw", c.vertical, c.by_delay,
      c.drain_every);
}

/// A trainer on the samples of `Labelled`, and what it gives.
struct AsyncTraining {
  AsyncTraining(const AsyncCase& with, const Communicator& world)
      : c(with),
        config(config_of(with)),
        mesh(world, degrees_of(cut_of(with))),
        trainer(config, mesh,
                train::build([&](const Mesh& on) { return models::make_model(config, on); }, mesh),
                kAsyncSteps) {}

  void run(int steps) {
    const Labelled data(cut_of(c));
    const data::Order order(3, data.size(), cut_of(c).batch);
    const auto ranks = mesh.samples();
    for (int step = 1; step <= steps; ++step) {
      trainer.start(step, data::Loader::read(data, order, ranks.rank(), ranks.size(), step - 1));
      const bool drains = step == steps || (c.drain_every > 0 && step % c.drain_every == 0);
      take_all_but(drains ? 0 : c.left.value_or(trainer.lag()));
    }
    const auto& all = trainer.parameters();
    for (std::size_t i = 0; i < all.size(); ++i)
      outcome.weights[all[i].name] = trainer.attached().value(i).clone();
  }
  void take_all_but(std::size_t left) {
    while (trainer.num_started() > left) {
      const train::StepResult result = trainer.take();
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
  }
  parallel::Pipeline& pipe() { return dynamic_cast<parallel::Pipeline&>(trainer.attached()); }

  AsyncCase c;
  config::Config config;
  Mesh mesh;
  train::Trainer trainer;
  Outcome outcome;
};

/// The delay of every parameter of the model, by the stage that has it.
std::map<std::string, int> delays_of(AsyncTraining& training) {
  std::string mine;
  for (const nn::Parameter& one : training.trainer.parameters()) mine += one.name + "\n";
  const auto texts = comm::all_gather_texts(training.mesh.group(Axis::Pipe), mine);
  std::map<std::string, int> delays;
  for (std::size_t stage = 0; stage < texts.size(); ++stage) {
    std::istringstream names(texts[stage]);
    for (std::string name; std::getline(names, name);)
      delays[name] = delay_in_paper(training.config, training.c.pipe, static_cast<int>(stage),
                                    training.c.micros);
  }
  return delays;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item<double>();
}

void check_against_reference(const AsyncCase& c) {
  SCOPED_TRACE(describe(c));
  run_world(kThreads, c.pipe * c.replica * c.tensor, [&](const Communicator& world) {
    at::set_num_threads(1);
    AsyncTraining training(c, world);
    training.run(kAsyncSteps);
    const int rank = training.mesh.coord(Axis::Pipe);
    const int kept = delay_in_paper(training.config, c.pipe, rank, c.micros) + 1;
    EXPECT_EQ(training.pipe().peak_versions(), kept) << "versions used on rank " << rank;
    EXPECT_EQ(training.pipe().past_weights().size(),
              static_cast<std::size_t>(kept - 1) * training.trainer.shards().size());
    const auto expected =
        train_delayed(cut_of(c), training.config, delays_of(training), kAsyncSteps);
    ASSERT_EQ(training.outcome.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(training.outcome.losses[i], expected.losses[i], kSame) << "step " << i + 1;
      EXPECT_NEAR(training.outcome.norms[i], expected.norms[i], kSame) << "step " << i + 1;
    }
    if (c.tensor > 1) return;  // this rank has only a part of its weights
    for (const auto& [name, weight] : training.outcome.weights)
      EXPECT_LE(distance(weight, expected.weights.at(name)), kSame) << name;
  });
}

TEST(AsynchronousPipeline, TwoVersionsGiveThePapersDelayOfOneUpdate) {
  int number = 0;
  for (const int pipe : {2, 3, 4})
    for (const int micros : {pipe, pipe + 1, 2 * pipe}) {
      check_against_reference({.schedule = "pipedream-2bw",
                               .pipe = pipe,
                               .micros = micros,
                               .optimizer = number++ % 2 == 0 ? config::OptimizerKind::AdamW
                                                              : config::OptimizerKind::Sgd});
      if (HasFailure()) return;
    }
}

TEST(AsynchronousPipeline, StashedWeightsGiveThePapersDelayOfEveryStage) {
  int number = 0;
  for (const int pipe : {2, 3, 4})
    for (const int micros : {1, 2, 5})
      for (const bool vertical : {false, true}) {
        check_against_reference({.schedule = "pipedream",
                                 .pipe = pipe,
                                 .micros = micros,
                                 .optimizer = number++ % 3 == 0 ? config::OptimizerKind::Sgd
                                                                : config::OptimizerKind::AdamW,
                                 .vertical = vertical});
        if (HasFailure()) return;
      }
}

TEST(AsynchronousPipeline, GoesWithReplicasTensorsRecomputationAndShortBatches) {
  check_against_reference({.schedule = "pipedream-2bw", .pipe = 2, .micros = 3, .replica = 2});
  check_against_reference(
      {.schedule = "pipedream", .pipe = 3, .micros = 1, .replica = 2, .lost_rows = 1});
  check_against_reference({.schedule = "pipedream-2bw", .pipe = 2, .micros = 2, .tensor = 2});
  check_against_reference({.schedule = "pipedream",
                           .pipe = 3,
                           .micros = 1,
                           .recompute = config::Recompute::Block,
                           .lost_rows = 1});
  check_against_reference(
      {.schedule = "pipedream-2bw", .pipe = 2, .micros = 2, .tensor = 2, .kind = "llama"});
  check_against_reference({.schedule = "pipedream",
                           .pipe = 3,
                           .micros = 2,
                           .recompute = config::Recompute::Cheap,
                           .kind = "llama"});
}

TEST(AsynchronousPipeline, DividesTheLearningRateByTheDelayIfAsked) {
  check_against_reference({.schedule = "pipedream", .pipe = 4, .micros = 1, .by_delay = true});
  check_against_reference(
      {.schedule = "pipedream", .pipe = 3, .micros = 1, .vertical = true, .by_delay = true});
}

TEST(AsynchronousPipeline, DrainingChangesNoBit) {
  for (AsyncCase c :
       {AsyncCase{.schedule = "pipedream-2bw", .pipe = 2, .micros = 3},
        AsyncCase{.schedule = "pipedream", .pipe = 4, .micros = 1},
        AsyncCase{.schedule = "pipedream", .pipe = 3, .micros = 2, .vertical = true}}) {
    SCOPED_TRACE(describe(c));
    run_world(kThreads, c.pipe, [&](const Communicator& world) {
      at::set_num_threads(1);
      AsyncTraining through(c, world);
      through.run(kAsyncSteps);
      for (const int every : {1, 2, 3}) {
        AsyncCase with = c;
        with.drain_every = every;
        AsyncTraining drained(with, world);
        drained.run(kAsyncSteps);
        EXPECT_EQ(drained.outcome.losses, through.outcome.losses) << "drained every " << every;
        for (const auto& [name, weight] : through.outcome.weights)
          EXPECT_TRUE(weight.equal(drained.outcome.weights.at(name))) << name;
      }
    });
  }
}

/// A stage that has ended a step must drain with those that have not.
TEST(AsynchronousPipeline, StepsMayBeTakenBeforeAllStagesHaveEndedThem) {
  for (const AsyncCase& c :
       {AsyncCase{.schedule = "pipedream-2bw", .pipe = 3, .micros = 4},
        AsyncCase{.schedule = "pipedream", .pipe = 4, .micros = 1},
        AsyncCase{.schedule = "pipedream", .pipe = 3, .micros = 2, .replica = 2}}) {
    SCOPED_TRACE(describe(c));
    run_world(kThreads, c.pipe * c.replica, [&](const Communicator& world) {
      at::set_num_threads(1);
      AsyncTraining usual(c, world);
      usual.run(kAsyncSteps);
      for (std::size_t left = 1; left < usual.trainer.lag(); ++left) {
        AsyncCase with = c;
        with.left = left;
        AsyncTraining early(with, world);
        early.run(kAsyncSteps);
        EXPECT_EQ(early.outcome.losses, usual.outcome.losses) << left << " left";
        for (const auto& [name, weight] : usual.outcome.weights)
          EXPECT_TRUE(weight.equal(early.outcome.weights.at(name))) << name;
      }
    });
  }
}

/// The gradient of one stage is not finite. The other stages have made that update; still all ranks
/// end at the same step, with the same sentence.
TEST(AsynchronousPipeline, AllRanksEndAtAStepThatOneStageCannotMake) {
  const AsyncCase c{.schedule = "pipedream", .pipe = 3, .micros = 1, .replica = 2};
  for (const int bad : {0, 1, 2}) {
    run_world(kThreads, 6, [&](const Communicator& world) {
      at::set_num_threads(1);
      AsyncTraining training(c, world);
      training.run(4);
      if (training.mesh.coord(Axis::Pipe) == bad && training.mesh.coord(Axis::Replica) == 1)
        training.trainer.parameters().front().tensor.register_hook([](const at::Tensor& gradient) {
          return gradient * std::numeric_limits<double>::infinity();
        });
      const std::string sentence = sentence_of<Error>([&] { training.run(kAsyncSteps); });
      EXPECT_THAT(sentence, AllOf(HasSubstr("step 1: the loss is"), HasSubstr("Lower optim.lr")));
      for (const std::string& theirs : comm::all_gather_texts(world, sentence))
        EXPECT_EQ(theirs, sentence) << "stage " << bad;
    });
  }
}

/// Nothing counts in one step: no stage updates, and all ranks say so.
TEST(AsynchronousPipeline, AStepWithoutWeightIsOneOnEveryStage) {
  const AsyncCase c{.schedule = "pipedream-2bw", .pipe = 3, .micros = 3};
  run_world(kThreads, 3, [&](const Communicator& world) {
    at::set_num_threads(1);
    AsyncTraining training(c, world);
    const Labelled data(cut_of(c));
    const data::Order order(3, data.size(), cut_of(c).batch);
    for (int step = 1; step <= 5; ++step) {
      data::Batch batch = data::Loader::read(data, order, 0, 1, step - 1);
      if (step == 3) batch.targets.fill_(nn::kIgnored);
      training.trainer.start(step, batch);
    }
    for (int step = 1; step <= 5; ++step) {
      const train::StepResult result = training.trainer.take();
      EXPECT_EQ(result.weight == 0, step == 3);
      EXPECT_EQ(std::isnan(result.loss), step == 3);
    }
    for (const core::Json& count : training.trainer.state().extra.at("optimizer").at("steps"))
      EXPECT_EQ(count, 4);
  });
}

/// The loop of docs/pipeline.md, without a trainer.
TEST(AsynchronousPipeline, WorksInALoopOfOnesOwn) {
  const AsyncCase c{
      .schedule = "pipedream-2bw", .pipe = 2, .micros = 2, .optimizer = config::OptimizerKind::Sgd};
  run_world(kThreads, 2, [&](const Communicator& world) {
    at::set_num_threads(1);
    AsyncTraining trained(c, world);
    trained.run(kAsyncSteps);
    const config::Config config = config_of(c);
    const Mesh mesh(world, {.pipe = 2});
    const auto model = models::make_model(config, mesh);
    nn::move_to(*model, at::kDouble, at::kCPU);
    nn::initialize(*model, static_cast<uint64_t>(config.run.seed));
    parallel::Pipeline pipe(*model, mesh,
                            pipeline::make_periodic("pipedream-2bw", {.ranks = 2, .micros = 2}),
                            {.cut = trained.pipe().cut()});
    std::vector<optim::Slot> slots;
    for (const auto& shard : pipe.shards())
      slots.push_back({.name = shard.name,
                       .parameter = shard.master,
                       .decay = optim::is_decayed(shard.master.sizes())});
    const auto optimizer = optim::make_sgd(
        slots, {.momentum = config.optim.momentum, .weight_decay = config.optim.weight_decay});
    std::vector<double> losses;
    pipe.asynchronous()->on_update([&](const parallel::Totals& totals) {
      optimizer->step(config.optim.lr, totals.weight);
      pipe.updated();
      losses.push_back(totals.loss / totals.weight);
    });
    const Labelled data(cut_of(c));
    const data::Order order(3, data.size(), cut_of(c).batch);
    for (int step = 1; step <= kAsyncSteps; ++step) {
      const data::Batch batch = data::Loader::read(data, order, 0, 1, step - 1);
      std::vector<nn::MicroBatch> micros;
      for (const int64_t row : {0, 2}) {
        auto where = std::make_shared<nn::Where>();
        where->step = step;
        where->sample_ids = {batch.sample_ids.begin() + row, batch.sample_ids.begin() + row + 2};
        micros.push_back(
            {nn::Flow(batch.inputs.narrow(0, row, 2), where), batch.targets.narrow(0, row, 2)});
      }
      pipe.run(micros);
    }
    EXPECT_EQ(outcome_of<MisuseError>([&] { pipe.finish(); }).substr(0, 9), "Pipeline:");
    pipe.asynchronous()->drain();
    EXPECT_EQ(losses, trained.outcome.losses);
    for (std::size_t i = 0; i < pipe.parameters().size(); ++i)
      EXPECT_TRUE(pipe.value(i).equal(trained.outcome.weights.at(pipe.parameters()[i].name)));
  });
}

TEST(AsynchronousPipeline, RunsIn16Bits) {
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      at::set_num_threads(1);
      const AsyncCase c{.schedule = schedule, .pipe = 2, .micros = 2};
      AsyncTraining wide(c, world);
      wide.run(kAsyncSteps);
      config::Config config = config_of(c);
      config.precision.compute = config::Dtype::BFloat16;
      config.precision.reduce = config::Dtype::Float32;
      const Mesh mesh(world, {.pipe = 2});
      train::Trainer trainer(
          config, mesh,
          train::build([&](const Mesh& on) { return models::make_model(config, on); }, mesh),
          kAsyncSteps);
      const Labelled data(cut_of(c));
      const data::Order order(3, data.size(), cut_of(c).batch);
      for (int step = 1; step <= kAsyncSteps; ++step) {
        const double loss =
            trainer.step(step, data::Loader::read(data, order, 0, 1, step - 1)).loss;
        EXPECT_NEAR(loss, wide.outcome.losses[static_cast<std::size_t>(step) - 1], 0.02);
      }
    });
  }
}

TEST(AsynchronousPipeline, RefusesWhatItCannotDo) {
  const auto says = [](const std::function<void(config::Config&)>& change, Degrees degrees) {
    config::Config config =
        config_of(AsyncCase{.schedule = "pipedream-2bw", .pipe = 2, .micros = 2});
    change(config);
    return sentence_of<ConfigError>([&] { train::periodic_schedule_of(config, degrees); });
  };
  EXPECT_THAT(says([](auto& c) { c.optim.clip = 1; }, {.pipe = 2}),
              AllOf(HasSubstr("optim.clip = 1"), HasSubstr("set optim.clip=0")));
  EXPECT_THAT(says([](auto& c) { c.model.tie = true; }, {.pipe = 2}), HasSubstr("model.tie=false"));
  EXPECT_THAT(says([](auto&) {}, {.pipe = 2, .shard = 2}), HasSubstr("mesh.shard = 2"));
  EXPECT_THAT(says([](auto& c) { c.precision.compute = config::Dtype::Float16; }, {.pipe = 2}),
              HasSubstr("float16"));
  EXPECT_THAT(says([](auto&) {}, {.pipe = 3}),
              AllOf(HasSubstr("2 micro-batches a step on 3 ranks"), HasSubstr("at least 3"),
                    HasSubstr("batch.micro = 2")));
}

TEST(AsynchronousPipeline, VerifyRefusesToCompareIt) {
  run_world(kThreads, 2, [](const Communicator& world) {
    const AsyncCase c{.schedule = "pipedream-2bw", .pipe = 2, .micros = 2};
    const config::Config config = config_of(c);
    EXPECT_THAT(sentence_of<ConfigError>([&] {
                  verify::verify(
                      {config, [&](const Mesh& mesh) { return models::make_model(config, mesh); },
                       std::make_shared<Labelled>(cut_of(c))},
                      world, {.pipe = 2});
                }),
                AllOf(HasSubstr("pipedream-2bw"), HasSubstr("not meant to be equal"),
                      HasSubstr("pipeline.schedule=1f1b")));
  });
}

}  // namespace
}  // namespace trireme::test
