// A run that was saved and resumed is the run that went on: bit for bit, with all that it keeps.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/registry.h"
#include "support/backends.h"
#include "support/scratch.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/data/markov.h"
#include "trireme/format/load.h"
#include "trireme/nn/head.h"
#include "trireme/nn/linear.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;

constexpr int64_t kFeatures = 6, kClasses = 5;

/// Counts the steps that it has seen, in a number and in bits.
struct CounterImpl : nn::LayerImpl {
  CounterImpl() {
    seen = register_buffer("seen", torch::zeros({}, torch::kLong));
    bits = register_buffer("bits", torch::zeros({5}, torch::kBool));
    none = parameter("none", {0, 3}, nn::InitRule::zeros());  // without elements
    scale = parameter("scale", {kFeatures}, nn::InitRule::ones());
  }
  at::Tensor compute(const at::Tensor& x, const nn::Where*) override {
    if (is_training()) {
      seen += 1;
      bits[seen.item<int64_t>() % 5] = seen.item<int64_t>() % 3 == 0;
    }
    return x * scale + none.sum();
  }
  using LayerImpl::compute;
  at::Tensor seen, bits, none, scale;
};

/// Linear, batch norm, counter, head; the first weight may be frozen.
struct NormedImpl : nn::ModelImpl {
  explicit NormedImpl(bool frozen = false) {
    const auto add = [&](const char* name, std::shared_ptr<nn::LayerImpl> layer) {
      links.push_back(register_module(name, std::move(layer)));
    };
    nn::Linear first(kFeatures, kFeatures);
    if (frozen) first->weight.requires_grad_(false);
    add("first", first.ptr());
    add("norm", nn::as_layer(torch::nn::BatchNorm1d(kFeatures)));
    add("counter", std::make_shared<CounterImpl>());
    add("second", nn::Linear(kFeatures, kFeatures).ptr());
    head = register_module("head", nn::Head(kFeatures, kClasses, nn::HeadImpl::Options{}));
  }
  nn::Chain chain() override {
    nn::Chain chain;
    for (const auto& one : links)
      chain.links.push_back({.name = one->full_name(), .layers = {one}});
    chain.head = {.name = "head", .layers = {head.ptr()}};
    chain.loss = [this](const nn::Flow& in, const at::Tensor& targets) {
      return head->loss(in, targets);
    };
    return chain;
  }
  std::vector<std::shared_ptr<nn::LayerImpl>> links;
  nn::Head head{nullptr};
};

struct Points final : data::Dataset {
  explicit Points(at::ScalarType of = at::kFloat) : dtype(of) {}
  int64_t size() const override { return 40; }
  data::Sample get(int64_t i) const override {
    return {torch::sin(torch::arange(kFeatures, torch::kDouble) * (i + 1)).to(dtype),
            torch::tensor(i % kClasses)};
  }
  at::ScalarType dtype;
};

/// A run of a configuration that can be left and taken up.
class Runner {
 public:
  Runner(const Communicator& world, const config::Config& config, const Degrees& degrees,
         const train::ModelFactory& model, std::shared_ptr<const data::Dataset> data)
      : config_(config),
        mesh_(world, degrees),
        data_(std::move(data)),
        trainer_(config_, mesh_, train::build(model, mesh_), 20) {}

  void steps(int64_t from, int64_t to) {
    const data::Order order(3, data_->size(), config_.batch.global);
    const auto samples = mesh_.samples();
    for (int64_t step = from; step <= to; ++step)
      trainer_.step(step,
                    data::Loader::read(*data_, order, samples.rank(), samples.size(), step - 1));
  }
  void save(const std::string& folder, int64_t step) {
    checkpoint::Saver saver(folder, mesh_, 1);
    saver.save(step, trainer_.state());
    EXPECT_EQ(saver.wait(), std::nullopt);
    mesh_.world().barrier();
  }
  void load(const std::string& folder) {
    const auto saved = checkpoint::load_newest(
        folder, mesh_.world(),
        [&, own = trainer_.own_state()](format::Checkpoint& one) { trainer_.load(one, own); });
    ASSERT_TRUE(saved.has_value());
    trainer_.restore();
  }
  /// Everything that a checkpoint would hold of this rank.
  std::map<std::string, at::Tensor> state() {
    std::map<std::string, at::Tensor> all;
    for (const auto& item : trainer_.state().items)
      all[fmt::format("{}@{}", item.piece.name, item.piece.begin)] = item.tensor.clone();
    return all;
  }
  train::Trainer& trainer() { return trainer_; }

 private:
  config::Config config_;
  Mesh mesh_;
  std::shared_ptr<const data::Dataset> data_;
  train::Trainer trainer_;
};

/// Eight steps, and four that another run goes on from: the same state.
void expect_same_when_resumed(const config::Config& config, const Degrees& degrees,
                              const train::ModelFactory& model,
                              const std::shared_ptr<const data::Dataset>& data) {
  const Scratch folder;
  run_world(kThreads, degrees.world(), [&](const Communicator& world) {
    at::set_num_threads(1);
    Runner whole(world, config, degrees, model, data), part(world, config, degrees, model, data);
    whole.steps(1, 8);
    part.steps(1, 4);
    part.save(folder / "run", 4);
    Runner resumed(world, config, degrees, model, data);
    resumed.load(folder / "run");
    resumed.steps(5, 8);
    const auto wanted = whole.state(), got = resumed.state();
    ASSERT_EQ(wanted.size(), got.size());
    for (const auto& [name, tensor] : wanted)
      EXPECT_TRUE(got.at(name).equal(tensor)) << name << " on " << to_string(degrees);
  });
}

config::Config small(config::Dtype precision) {
  config::Config config;
  config.run.device = config::Device::Cpu;
  config.precision.compute = config.precision.reduce = precision;
  config.batch.global = 8;
  config.batch.micro = 2;
  config.optim.lr = 0.01;
  config.pipeline.balance.by = config::Balance::By::Parameters;
  return config;
}

TEST(Resumed, IsTheSameBitForBitThoughAWeightIsOnTwoStagesOfARank) {
  config::Config config = small(config::Dtype::Float32);
  config.model.layers = 2;
  config.model.hidden = 16;
  config.model.heads = 2;
  config.model.kv_heads = 2;
  config.model.seq = 8;
  config.model.vocab = 32;
  config.pipeline.schedule = "zb-v";
  config.pipeline.stages_per_rank = 2;
  const auto model = [&](const Mesh& mesh) { return models::make_model(config, mesh); };
  const auto data = std::make_shared<data::Markov>(
      data::MarkovOptions{.vocab = 32, .seq = 8, .samples = 40, .seed = 3});
  for (const Degrees& degrees : {Degrees{.pipe = 2, .replica = 2}, Degrees{.pipe = 2, .shard = 2}})
    expect_same_when_resumed(config, degrees, model, data);
}

const Degrees kStateMeshes[] = {{},
                                {.replica = 2},
                                {.shard = 2},
                                {.pipe = 2},
                                {.pipe = 2, .replica = 2},
                                {.pipe = 2, .shard = 2}};

TEST(Resumed, HasItsBuffersWhateverKeepsTheRanksTogether) {
  for (const Degrees& degrees : kStateMeshes)
    for (const bool frozen : {false, true})
      expect_same_when_resumed(
          small(config::Dtype::Float32), degrees,
          [&](const Mesh&) { return std::make_shared<NormedImpl>(frozen); },
          std::make_shared<Points>());
}

TEST(Buffers, AreAlikeOnEveryMeshAndADriftIsSeen) {
  for (const Degrees& degrees : kStateMeshes) {
    if (degrees.world() == 1 || degrees.data() == 1) continue;
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      Runner run(
          world, small(config::Dtype::Float32), degrees,
          [](const Mesh&) { return std::make_shared<NormedImpl>(); }, std::make_shared<Points>());
      run.steps(1, 2);
      run.trainer().check_same();
      // Of two ranks that run the same layers, the second changes what it has.
      if (world.rank() == 1)
        for (const auto& [name, tensor] : run.trainer().attached().buffers())
          if (tensor.is_floating_point()) tensor.add_(1);
      EXPECT_THAT([&] { run.trainer().check_same(); },
                  ::testing::ThrowsMessage<CommError>(HasSubstr("'norm.module.running_")))
          << to_string(degrees);
    });
  }
}

TEST(Buffers, ThatNoLinkHasAreRefusedInAPipeline) {
  struct Loose : NormedImpl {
    Loose() { register_buffer("loose", torch::zeros({1})); }
  };
  run_world(kThreads, 2, [&](const Communicator& world) {
    EXPECT_THAT(
        [&] {
          Runner(
              world, small(config::Dtype::Float32), {.pipe = 2},
              [](const Mesh&) { return std::make_shared<Loose>(); }, std::make_shared<Points>());
        },
        ::testing::ThrowsMessage<MisuseError>(HasSubstr("buffer 'loose' belongs to no link")));
  });
}

TEST(Resumed, OnAnotherMeshThoughAParameterHasNoElements) {
  const auto model = [](const Mesh&) { return std::make_shared<NormedImpl>(); };
  const auto data = std::make_shared<Points>();
  for (const auto& [from, to] : {std::pair<Degrees, Degrees>{{.shard = 2}, {}},
                                 {{}, {.shard = 2}},
                                 {{.pipe = 2}, {.shard = 2}}}) {
    const Scratch folder;
    run_world(kThreads, from.world(), [&](const Communicator& world) {
      Runner run(world, small(config::Dtype::Float32), from, model, data);
      run.steps(1, 2);
      run.save(folder / "run", 2);
    });
    const format::Checkpoint saved(folder / "run/step-00000002");
    ASSERT_TRUE(saved.index().tensors.contains("counter.none"));
    EXPECT_EQ(saved.index().tensors.at("counter.none").shape, (std::vector<int64_t>{0, 3}));
    EXPECT_EQ(saved.index().tensors.at("buffer/counter.bits").dtype, "BOOL");
    run_world(kThreads, to.world(), [&](const Communicator& world) {
      Runner run(world, small(config::Dtype::Float32), to, model, data);
      run.load(folder / "run");
      run.steps(3, 4);
    });
  }
}

TEST(Resumed, InAnotherPrecisionStartsFromTheSameNumbers) {
  const Scratch folder;
  const auto model = [](const Mesh&) { return std::make_shared<NormedImpl>(); };
  run_world(kThreads, 1, [&](const Communicator& world) {
    Runner narrow(world, small(config::Dtype::Float32), {}, model, std::make_shared<Points>());
    narrow.steps(1, 3);
    narrow.save(folder / "run", 3);
    Runner wide(world, small(config::Dtype::Float64), {}, model, std::make_shared<Points>());
    wide.load(folder / "run");
    for (const auto& [name, tensor] : narrow.state()) {
      const at::Tensor other = wide.state().at(name);
      EXPECT_TRUE(other.equal(tensor.to(other.scalar_type()))) << name;
    }
    wide.save(folder / "wide", 3);
    Runner again(world, small(config::Dtype::Float32), {}, model, std::make_shared<Points>());
    again.load(folder / "wide");
    for (const auto& [name, tensor] : narrow.state())
      EXPECT_TRUE(again.state().at(name).equal(tensor)) << name;
  });
}

/// Throws in the forward of a micro-batch.
struct ThrowingImpl : NormedImpl {
  nn::Loss loss(const nn::Flow& in, const at::Tensor& targets) override {
    if (++calls == throw_at) throw Error("the user's forward cannot");
    return NormedImpl::loss(in, targets);
  }
  int calls = 0, throw_at = 0;
};

TEST(Trainer, KeepsNothingOfAStepWhoseForwardThrew) {
  for (const Degrees& degrees : {Degrees{.replica = 2}, Degrees{.shard = 2}}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      const auto model = std::make_shared<ThrowingImpl>(), other = std::make_shared<ThrowingImpl>();
      const auto data = std::make_shared<Points>(at::kDouble);
      Runner run(
          world, small(config::Dtype::Float64), degrees, [&](const Mesh&) { return model; }, data),
          plain(
              world, small(config::Dtype::Float64), degrees, [&](const Mesh&) { return other; },
              data);
      model->eval();  // statistics of the half step would stay, rightly
      other->eval();
      model->throw_at = 2;  // after the first of two micro-batches has been through backward
      EXPECT_THROW(run.steps(1, 1), Error);
      model->throw_at = 0;
      run.steps(1, 2);
      plain.steps(1, 2);
      const auto wanted = plain.state();
      for (const auto& [name, tensor] : run.state())
        EXPECT_TRUE(tensor.equal(wanted.at(name))) << name << " " << to_string(degrees);
    });
  }
}

TEST(Trainer, TrainsAgainAfterAnEvaluationThatThrew) {
  const auto model = std::make_shared<ThrowingImpl>();
  run_world(kThreads, 1, [&](const Communicator& world) {
    Runner run(
        world, small(config::Dtype::Float32), {}, [&](const Mesh&) { return model; },
        std::make_shared<Points>());
    model->throw_at = 1;
    EXPECT_THROW(run.trainer().evaluate(Points(), 1), Error);
    EXPECT_TRUE(model->is_training());
  });
}

TEST(Drift, BetweenCopiesOfAKvHeadIsSeen) {
  config::Config config = small(config::Dtype::Float32);
  config.model.layers = 1;
  config.model.hidden = 16;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.seq = 4;
  config.model.vocab = 12;
  run_world(kThreads, 4, [&](const Communicator& world) {
    const auto model = [&](const Mesh& mesh) { return models::make_model(config, mesh); };
    Runner run(world, config, {.tensor = 4}, model, std::make_shared<Points>());
    run.trainer().check_same();
    if (world.rank() == 1) {
      for (const parallel::ParameterShard& one : run.trainer().shards())
        for (std::size_t i = 0; i < one.reductions.size(); ++i)
          if (one.reductions[i].box.copies > 1) one.part(one.master, i).view({-1})[0] += 1e-3;
    }
    EXPECT_THAT([&] { run.trainer().check_same(); },
                ::testing::ThrowsMessage<CommError>(HasSubstr("'h.0.attn.c_attn.weight' of rank 1 "
                                                              "differs from rank 0's")));
  });
}

}  // namespace
}  // namespace trireme::test
