// ResNet and ViT: the same numbers on every mesh, what they learn, and what they refuse.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/resnet.h"
#include "models/vit.h"
#include "support/images.h"
#include "support/scratch.h"
#include "support/sentence.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/recompute.h"
#include "trireme/train/memory.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;

TEST(VerifyImages, ProvesViTOnEveryMesh) {
  for (const Degrees& degrees :
       {Degrees{.replica = 4}, Degrees{.tensor = 2}, Degrees{.replica = 2, .tensor = 2},
        Degrees{.shard = 3}, Degrees{.pipe = 2}, Degrees{.pipe = 2, .tensor = 2},
        Degrees{.pipe = 2, .shard = 2}}) {
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      for (const bool sequence : {true, false}) {
        config::Config config = image_config("vit");
        config.model.dropout = 0.1;
        config.batch.micro = 2;
        config.tensor.sequence = sequence;
        const auto report = prove_images(world, config, degrees);
        EXPECT_TRUE(report.same()) << to_string(degrees) << "\n" << report.text();
        EXPECT_TRUE(report.skipped.empty()) << report.text();
        if (degrees.tensor == 1) break;
      }
    });
  }
}

TEST(VerifyImages, ProvesResNetOnEveryMesh) {
  for (const Degrees& degrees :
       {Degrees{.replica = 4}, Degrees{.shard = 3}, Degrees{.replica = 2, .shard = 2},
        Degrees{.pipe = 2}, Degrees{.pipe = 2, .replica = 2}, Degrees{.pipe = 2, .shard = 2}}) {
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      config::Config config = image_config("resnet");
      if (degrees == Degrees{.pipe = 2}) config.batch.micro = 3;  // as one rank cuts them
      const auto report = prove_images(world, config, degrees);
      EXPECT_TRUE(report.same()) << to_string(degrees) << "\n" << report.text();
      EXPECT_TRUE(report.skipped.empty()) << report.text();
    });
  }
}

/// Trains and evaluates on one mesh.
struct Trained {
  std::vector<double> losses;
  train::Evaluation evaluation;
};

Trained train_images(const Communicator& world, const config::Config& config,
                     const Degrees& degrees, int64_t steps, const Stripes& data = Stripes()) {
  at::set_num_threads(1);
  const Mesh mesh(world, degrees);
  const auto make = [&](const Mesh& on) { return make_images(config, on); };
  train::Trainer trainer(config, mesh, train::build(make, mesh), steps);
  const data::Order order(1, data.size(), config.batch.global);
  const Communicator samples = mesh.samples();
  Trained all;
  for (int64_t step = 1; step <= steps; ++step)
    all.losses.push_back(
        trainer
            .step(step, data::Loader::read(data, order, samples.rank(), samples.size(), step - 1))
            .loss);
  all.evaluation = trainer.evaluate(Stripes(32, data.count), 0);
  return all;
}

TEST(Images, AreToldApartAndCounted) {
  for (const char* kind : {"resnet", "vit"}) {
    config::Config config = image_config(kind);
    config.batch.global = config.batch.micro = 20;
    config.optim.weight_decay = 0;
    config.optim.lr = 3e-3;
    config.model.hidden = 32;
    const int64_t steps = std::string(kind) == "vit" ? 250 : 50;
    run_world(kThreads, 1, [&](const Communicator& world) {
      const Trained trained = train_images(world, config, {}, steps, Stripes(400));
      EXPECT_LT(trained.losses.back(), trained.losses.front() / 4) << kind;
      ASSERT_TRUE(trained.evaluation.accuracy.has_value());
      EXPECT_GT(*trained.evaluation.accuracy, 0.9) << kind;
    });
  }
}

TEST(Images, HaveTheSameAccuracyOnEveryMesh) {
  for (const char* kind : {"resnet", "vit"}) {
    config::Config config = image_config(kind);
    config.precision.compute = config.precision.reduce = config::Dtype::Float64;
    Trained alone;
    run_world(kThreads, 1, [&](const Communicator& world) {
      alone = train_images(world, config, {}, 4);
    });
    for (const Degrees& degrees :
         {Degrees{.replica = 2}, Degrees{.pipe = 2}, Degrees{.tensor = 2}}) {
      if (degrees.tensor > 1 && std::string(kind) == "resnet") continue;
      run_world(kThreads, degrees.world(), [&](const Communicator& world) {
        const Trained here = train_images(world, config, degrees, 4);
        EXPECT_EQ(*here.evaluation.accuracy, *alone.evaluation.accuracy) << kind;
        EXPECT_NEAR(here.evaluation.loss, alone.evaluation.loss, 1e-9) << kind;
      });
    }
  }
}

TEST(ResNet, HasTorchvisionsParametersAndBuffers) {
  const nn::Deferred deferred;
  const auto sizes_of = [](const models::ResNetOptions& options) {
    const models::ResNet model(options, mesh_of_one());
    int64_t parameters = 0;
    for (const auto& one : model->parameters()) parameters += one.numel();
    return std::pair(parameters, model->buffers().size());
  };
  using Stem = models::ResNetOptions::Stem;
  EXPECT_EQ(sizes_of({.depth = 18, .classes = 1000, .image = 224, .stem = Stem::ImageNet}),
            std::pair(int64_t{11'689'512}, std::size_t{60}));
  EXPECT_EQ(sizes_of({.depth = 50, .classes = 1000, .image = 224, .stem = Stem::ImageNet}),
            std::pair(int64_t{25'557'032}, std::size_t{159}));
  EXPECT_EQ(sizes_of({.depth = 18}).first, 11'173'962);
}

TEST(ResNet, GivesTheSameInBothMemoryFormats) {
  const auto gradients_of = [](at::MemoryFormat format) {
    models::ResNet model(models::ResNetOptions{.image = 16, .width = 8, .format = format},
                         mesh_of_one());
    nn::initialize(*model, 1);
    model->to(torch::kDouble);
    const auto micro = *model->example(3);
    model->loss(nn::Flow(micro.inputs.x().to(torch::kDouble), micro.inputs.where), micro.targets)
        .sum.backward();
    std::vector<at::Tensor> all;
    for (const auto& one : model->parameters()) all.push_back(one.grad());
    for (const auto& one : model->buffers()) all.push_back(one);
    return all;
  };
  const auto first = gradients_of(at::MemoryFormat::Contiguous),
             last = gradients_of(at::MemoryFormat::ChannelsLast);
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_LE((first[i] - last[i]).abs().max().item<double>(), 1e-9) << i;
}

TEST(VerifyImages, RefusesMicroBatchesThatOneRankCannotHave) {
  run_world(kThreads, 2, [](const Communicator& world) {
    config::Config config = image_config("resnet");
    config.batch.micro = 2;
    EXPECT_EQ(sentence_of<ConfigError>([&] { prove_images(world, config, {.replica = 2}); }),
              "verify: the model has batch norms, which normalize each micro-batch by itself, and "
              "replica 2 cuts batches of 6 samples into other micro-batches than one rank does; "
              "use batch.micro=3, so that a rank has one");
  });
}

TEST(VerifyImages, ProvesRecomputation) {
  for (const char* kind : {"resnet", "vit"}) {
    for (const auto recompute : {config::Recompute::Block, config::Recompute::Selective,
                                 config::Recompute::Cheap}) {
      if (std::string(kind) == "resnet" && recompute != config::Recompute::Block) continue;
      run_world(kThreads, 2, [&](const Communicator& world) {
        config::Config config = image_config(kind);
        config.memory.recompute = recompute;
        const auto report = prove_images(world, config, {.replica = 2});
        EXPECT_TRUE(report.same()) << kind << " " << to_string(recompute) << "\n" << report.text();
      });
    }
  }
}

TEST(ResNet, RefusesWhatItCannotBe) {
  run_world(kThreads, 2, [](const Communicator& world) {
    const config::Config config = image_config("resnet");
    EXPECT_THAT(sentence_of<ConfigError>(
                    [&] { models::make_model(config, Mesh(world, {.tensor = 2})); }),
                HasSubstr("resnet cannot be cut 2 ways along tensor"));
    config::Config deep = config;
    deep.model.depth = 34;
    EXPECT_THAT(
        sentence_of<ConfigError>([&] { models::make_model(deep, Mesh(world, {.replica = 2})); }),
        HasSubstr("model.depth = 34; there are 18 and 50"));
  });
}

/// The bytes that a forward and backward take at their peak, besides weights and gradients.
double measured_bytes(nn::ModelImpl& model, int64_t rows) {
  const auto run = [&] {
    const auto micro = *model.example(rows);
    model.loss(micro.inputs, micro.targets).sum.backward();
  };
  run();  // makes the gradients
  const train::TensorMemory memory;
  run();
  return static_cast<double>(memory.peak());
}

TEST(Images, TakeTheMemoryThatIsForetold) {
  at::set_num_threads(1);
  constexpr int64_t kRows = 8;
  const auto expect = [&](nn::ModelImpl& model, bool recomputes, const std::string& what) {
    nn::initialize(model, 1);
    if (recomputes)
      for (const auto& block : model.blocks()) nn::recompute(*block);
    const nn::Batching of{.rows = kRows,
                          .recompute = recomputes ? nn::Batching::Recompute::Block
                                                  : nn::Batching::Recompute::None};
    EXPECT_NEAR(measured_bytes(model, kRows) / static_cast<double>(model.activation_bytes(of)), 1,
                0.1)
        << what;
  };
  using Stem = models::ResNetOptions::Stem;
  for (const bool recomputes : {false, true}) {
    models::ResNet small(models::ResNetOptions{}, mesh_of_one());
    expect(*small, recomputes, "resnet18");
    models::Vit vit(models::VitOptions{}, mesh_of_one());
    expect(*vit, recomputes, "vit");
    if (recomputes) continue;
    models::ResNet deep(models::ResNetOptions{.depth = 50, .image = 64, .stem = Stem::ImageNet},
                        mesh_of_one());
    expect(*deep, recomputes, "resnet50");
  }
}

TEST(Conv2d, SplitsItsBackward) {
  const auto run = [](bool split) {
    nn::Conv2d conv(nn::Conv2dImpl::Options{.in = 3, .out = 4, .padding = 1});
    nn::initialize(*conv, 3);
    const auto queue = std::make_shared<nn::WeightQueue>();
    nn::defer_weights(*conv, queue);
    const auto x = torch::sin(torch::arange(2. * 3 * 5 * 5)).view({2, 3, 5, 5}).requires_grad_();
    const auto y = conv->forward(x).pow(2).sum();
    if (split) {
      const auto jobs = queue->defer([&] { y.backward(); });
      EXPECT_EQ(jobs.size(), 2u);
      EXPECT_FALSE(conv->weight.grad().defined());
      for (const nn::WeightJob& job : jobs) nn::deliver(job);
    } else {
      y.backward();
    }
    return std::vector{x.grad(), conv->weight.grad(), conv->bias.grad()};
  };
  const auto whole = run(false), halves = run(true);
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_TRUE(whole[i].allclose(halves[i], 1e-6, 1e-6)) << i;
}

}  // namespace
}  // namespace trireme::test
