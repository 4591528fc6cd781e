// The prover finds nothing where nothing is wrong, says what it cannot compare, and finds what is
// planted.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/registry.h"
#include "support/tiny_model.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;
using verify::MistakeKind;

TEST(Verify, FindsNothingWhereNothingIsWrong) {
  for (const Degrees& degrees :
       {Degrees{.replica = 3}, Degrees{.tensor = 2}, Degrees{.replica = 2, .tensor = 2}}) {
    for (const Sequence sequence : {Sequence::Cut, Sequence::Whole}) {
      run_world(kThreads, degrees.world(), [&](const Communicator& world) {
        const auto report = prove(world, {degrees, sequence});
        EXPECT_TRUE(report.same()) << report.text();
        EXPECT_EQ(report.steps, 3);
        EXPECT_TRUE(report.skipped.empty());
        EXPECT_THAT(report.text(), HasSubstr("same: 3 steps"));
        // Two inputs, the weights of the 9 parameters, 5 seams, loss, 9 gradients, norm, and the
        // evaluation.
        EXPECT_EQ(report.rows.size(), 2u + 9 + 5 + 1 + 9 + 1 + 1);
        EXPECT_EQ(report.rows.back().role, verify::TensorRole::Evaluation);
        EXPECT_EQ(report.not_resumed, "");
      });
    }
  }
}

TEST(Verify, SaysWhichSeamsItCannotCompare) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto report =
        prove(world, {{.tensor = 2}, Sequence::Cut, [](Layers& layers, const Mesh&) {
                        layers.up->set_output(std::nullopt);
                      }});
    EXPECT_TRUE(report.same());
    EXPECT_EQ(report.skipped, (std::vector<std::string>{"up"}));
    EXPECT_THAT(report.text(), HasSubstr("not compared"));
    EXPECT_EQ(report.json().at("skipped")[0], "up");
    const auto said =
        prove(world, {{.tensor = 2}, Sequence::Cut, [](Layers& layers, const Mesh&) {
                        layers.up->set_output(std::vector<Cut>{{.axis = Axis::Tensor, .dim = -1}});
                      }});
    EXPECT_TRUE(said.same() && said.skipped.empty()) << said.text();
  });
}

TEST(Verify, ProvesTheModelsWithRecomputationAndCopies) {
  for (const char* kind : {"gpt", "llama", "mlp"}) {
    for (const auto recompute :
         {config::Recompute::None, config::Recompute::Block, config::Recompute::Selective,
          config::Recompute::Cheap, config::Recompute::Sqrt}) {
      run_world(kThreads, 4, [&](const Communicator& world) {
        config::Config config = tiny_gpt_config();
        config.model.kind = kind;
        config.model.dropout = 0.1;
        config.memory.recompute = recompute;
        const auto report = prove_model(world, config, {.tensor = 4});
        EXPECT_TRUE(report.same()) << kind << " " << to_string(recompute) << "\n" << report.text();
        EXPECT_TRUE(report.skipped.empty()) << report.text();
      });
    }
  }
}

TEST(Verify, ProvesExpertsOnRanks) {
  for (const Degrees& degrees :
       {Degrees{.replica = 2, .expert = 2}, Degrees{.shard = 2, .tensor = 2, .expert = 2},
        Degrees{.replica = 2, .shard = 2, .expert = 4},
        Degrees{.pipe = 2, .replica = 2, .expert = 2}}) {
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      config::Config config = tiny_gpt_config();
      config.model.kind = "moe-gpt";
      config.model.experts = 4;
      config.model.dropout = 0.1;
      config.model.shared_experts = 1;
      const auto report = prove_model(world, config, degrees);
      EXPECT_TRUE(report.same()) << to_string(degrees) << "\n" << report.text();
      EXPECT_TRUE(report.skipped.empty()) << report.text();
    });
  }
}

/// A model that loses a parameter where it is cut.
struct ForgetfulImpl : TinyImpl {
  ForgetfulImpl(const Mesh& mesh) : TinyImpl(Layers(), mesh, Sequence::Cut) {
    if (mesh.world().size() == 1) extra = parameter("extra", {3}, nn::InitRule::ones());
  }
  at::Tensor extra;
};

TEST(Verify, NoticesWhatTheMeshDoesNotHave) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto report = prove_own<ForgetfulImpl>(world, {.replica = 2});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->name, "extra");
    EXPECT_EQ(report.first->diagnosis.kind, MistakeKind::Missing);
  });
}

TEST(VerifyPlants, EachKindIsFoundOnEveryMesh) {
  using verify::Mistake;
  const std::pair<Mistake, MistakeKind> kinds[] = {
      {Mistake::Average, MistakeKind::Factor},    {Mistake::Reduce, MistakeKind::Partial},
      {Mistake::Order, MistakeKind::Permutation}, {Mistake::Stale, MistakeKind::Stale},
      {Mistake::Data, MistakeKind::Data},         {Mistake::Dropout, MistakeKind::Dropout}};
  for (const Degrees& degrees :
       {Degrees{.replica = 2}, Degrees{.tensor = 2}, Degrees{.replica = 2, .tensor = 2}}) {
    for (const auto& [mistake, kind] : kinds) {
      run_world(kThreads, degrees.world(), [&](const Communicator& world) {
        const auto report =
            verify::verify({small_config(),
                            [](const Mesh& mesh) {
                              return std::make_shared<TinyImpl>(Layers(), mesh, Sequence::Cut);
                            },
                            std::make_shared<Texts>()},
                           world, degrees, {.steps = 2, .plant = mistake});
        ASSERT_FALSE(report.same()) << to_string(kind);
        EXPECT_EQ(to_string(report.first->diagnosis.kind), to_string(kind)) << report.text();
      });
    }
  }
}

TEST(VerifyPlants, SayWhereTheyCannotBeMade) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto plant = [&](Sequence sequence) {
      verify::verify(
          {small_config(),
           [&](const Mesh& mesh) { return std::make_shared<TinyImpl>(Layers(), mesh, sequence); },
           std::make_shared<Texts>()},
          world, {.tensor = 2}, {.plant = verify::Mistake::Reduce});
    };
    EXPECT_THROW(plant(Sequence::Whole), ConfigError) << "nothing is reduced there";
    EXPECT_THROW(verify::mistake_of("sabotage"), ConfigError);
  });
}

config::Config gpt_config() {
  config::Config config = tiny_gpt_config();
  config.model.dropout = 0.1;
  return config;
}

TEST(Verify, ProvesWhatRunsInFloat32) {
  for (const Degrees& degrees :
       {Degrees{.replica = 3}, Degrees{.tensor = 4}, Degrees{.replica = 2, .tensor = 2},
        Degrees{.shard = 4}, Degrees{.pipe = 2, .shard = 2}, Degrees{.pipe = 2, .tensor = 2}}) {
    for (const char* kind : {"gpt", "llama", "mlp"}) {
      run_world(kThreads, degrees.world(), [&](const Communicator& world) {
        config::Config config = gpt_config();
        config.model.kind = kind;
        if (std::string(kind) == "mlp") config.model.layers = 3;
        const auto report = prove_model(world, config, degrees, {.dtype = verify::Dtype::Float32});
        EXPECT_TRUE(report.same()) << to_string(degrees) << " " << kind << "\n" << report.text();
        EXPECT_THAT(report.text(), HasSubstr("float32 within twice the error"));
        EXPECT_EQ(report.json().at("dtype"), "float32");
      });
    }
  }
}

TEST(Verify, TakesNoNumberThatIsNotFiniteForTheSame) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    config::Config config = gpt_config();
    config.optim.lr = 1e300;
    config.check.finite = false;
    const auto report = prove_model(world, config, {.replica = 2});
    EXPECT_FALSE(report.same()) << report.text();
  });
}

/// One part in a hundred thousand too much, where it is cut: rounding explains a hundredth of that.
struct InexactLinear : nn::LinearImpl {
  InexactLinear(int64_t in, int64_t out, bool wrong) : LinearImpl(in, out), wrong_(wrong) {}
  Flow compute(const Flow& in) override {
    const Flow out = LinearImpl::compute(in);
    return wrong_ ? out.with(out.x() * (1 + 1e-5)) : out;
  }
  bool wrong_;
};

TEST(Verify, FindsInFloat32WhatRoundingDoesNotExplain) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto report = verify::verify(
        {small_config(),
         [](const Mesh& mesh) {
           Layers layers;
           layers.down = std::make_shared<InexactLinear>(kWide, kWidth, mesh.world().size() > 1);
           return std::make_shared<TinyImpl>(layers, mesh, Sequence::Cut);
         },
         std::make_shared<Texts>()},
        world, {.tensor = 2}, {.dtype = verify::Dtype::Float32});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->name, "down");
    EXPECT_THAT(report.text(), HasSubstr("times what rounding explains"));
  });
}

TEST(Verify, OfOneRankSaysThatItProvesNothing) {
  run_world(kThreads, 1, [&](const Communicator& world) {
    const auto report = prove(world, {{}});
    EXPECT_TRUE(report.same());
    EXPECT_THAT(report.text(), HasSubstr("proves nothing about a mesh"));
  });
}

/// A small model with one mistake that only some steps, or none of training's, would show.
struct HiddenImpl : TinyImpl {
  enum class Mistake { None, Evaluation, Resume, ShortBatch, Frozen, Buffer };
  HiddenImpl(Mistake which, const Mesh& mesh)
      : TinyImpl(Layers(), mesh, Sequence::Cut),
        mistake(which),
        cut(mesh.world().size() > 1),
        last(mesh.world().rank() == mesh.world().size() - 1) {
    layers.norm->weight.requires_grad_(false);
    if (mistake != Mistake::ShortBatch)  // of replicas, where calls are fewer
      calls = layers.norm->register_buffer("calls", torch::zeros({}, torch::kLong));
    if (mistake == Mistake::Frozen && cut) layers.norm->init_rule("weight") = nn::InitRule::zeros();
  }
  nn::Loss loss(const Flow& tokens, const at::Tensor& targets) override {
    if (is_training()) ++seen;
    if (is_training() && calls.defined() && !(mistake == Mistake::Buffer && cut)) calls += 1;
    nn::Loss loss = TinyImpl::loss(tokens, targets);
    if (mistake == Mistake::Resume) loss.sum = loss.sum * (1 + 0.1 * seen);  // in no checkpoint
    if (mistake == Mistake::Evaluation && cut && !is_training()) loss.sum = loss.sum * 1.01;
    if (mistake == Mistake::ShortBatch && cut && tokens.x().size(0) == 1) loss.sum = loss.sum * 2;
    return loss;
  }
  Mistake mistake;
  bool cut, last;
  int seen = 0;
  at::Tensor calls;
};

TEST(Verify, SeesEvaluationResumingShortBatchesFrozenWeightsAndBuffers) {
  using Mistake = HiddenImpl::Mistake;
  using verify::TensorRole;
  const auto run = [](const Communicator& world, const Degrees& degrees, Mistake mistake) {
    return verify::verify(
        {small_config(),
         [&](const Mesh& mesh) { return std::make_shared<HiddenImpl>(mistake, mesh); },
         std::make_shared<Texts>()},
        world, degrees);
  };
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto right = run(world, {.tensor = 2}, Mistake::None);
    EXPECT_TRUE(right.same()) << right.text();
    const auto has = [&](TensorRole role, const std::string& name) {
      return std::any_of(right.rows.begin(), right.rows.end(),
                         [&](const auto& row) { return row.role == role && row.name == name; });
    };
    EXPECT_TRUE(has(TensorRole::Weight, "norm.weight")) << "frozen";
    EXPECT_FALSE(has(TensorRole::Gradient, "norm.weight"));
    EXPECT_TRUE(has(TensorRole::Buffer, "norm.calls"));
    const auto evaluation = run(world, {.tensor = 2}, Mistake::Evaluation);
    ASSERT_FALSE(evaluation.same());
    EXPECT_EQ(evaluation.first->role, TensorRole::Evaluation);
    EXPECT_THAT(evaluation.first->sentence(), HasSubstr("the evaluation loss after step 3"));
    const auto resumed = run(world, {.tensor = 2}, Mistake::Resume);
    ASSERT_FALSE(resumed.same()) << "what no checkpoint holds is gone after the second step";
    EXPECT_EQ(resumed.first->step, 3);
    const auto frozen = run(world, {.tensor = 2}, Mistake::Frozen);
    ASSERT_FALSE(frozen.same());
    EXPECT_THAT(frozen.first->sentence(), HasSubstr("the initial weight 'norm.weight'"));
    const auto buffer = run(world, {.tensor = 2}, Mistake::Buffer);
    ASSERT_FALSE(buffer.same());
    EXPECT_THAT(buffer.first->sentence(), HasSubstr("the buffer 'norm.calls' after step 1"));
  });
  run_world(kThreads, 3, [&](const Communicator& world) {
    // 64 samples in batches of 6: the last has 4, and a micro-batch of one row.
    const auto report = run(world, {.replica = 3}, Mistake::ShortBatch);
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->step, 3);
  });
}

/// Hands on two tensors.
struct ForkImpl : nn::LayerImpl {
  explicit ForkImpl(bool is_wrong) : wrong(is_wrong) {}
  Flow compute(const Flow& in) override { return {{in.x(), in.x() * (wrong ? 3 : 2)}, in.where}; }
  bool wrong;
};
struct ForkedImpl : TinyImpl {
  explicit ForkedImpl(const Mesh& mesh) : TinyImpl(Layers(), mesh, Sequence::Whole) {
    fork = register_module("fork", std::make_shared<ForkImpl>(mesh.world().size() > 1));
  }
  nn::Loss loss(const Flow& tokens, const at::Tensor& targets) override {
    const Flow x = layers.norm->forward(layers.drop->forward(layers.table->forward(tokens)));
    return head->loss(fork->forward(x).with(x.x()), targets);
  }
  std::shared_ptr<ForkImpl> fork;
};

TEST(Verify, ComparesEveryTensorOfAFlow) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto report = prove_own<ForkedImpl>(world, {.replica = 2});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->name, "fork (tensor 2)");
  });
}

TEST(VerifyPlants, AverageMultipliesByTheRanksThatAverage) {
  run_world(kThreads, 4, [&](const Communicator& world) {
    const auto report = prove_model(world, gpt_config(), {.replica = 2, .tensor = 2},
                                    {.plant = verify::Mistake::Average});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->diagnosis.kind, MistakeKind::Factor);
    EXPECT_THAT(report.first->diagnosis.sentence, HasSubstr("it is 2 times what"));
  });
}

TEST(VerifyPlants, OrderIsFoundOnAPipeAlone) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto report =
        prove_model(world, gpt_config(), {.pipe = 2}, {.plant = verify::Mistake::Order});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->diagnosis.kind, MistakeKind::Permutation) << report.text();
  });
}

}  // namespace
}  // namespace trireme::test
