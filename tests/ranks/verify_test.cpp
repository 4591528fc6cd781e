// The prover: it finds nothing where nothing is wrong, and names each planted mistake.
#include "trireme/verify/verify.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/registry.h"
#include "support/backends.h"
#include "support/tiny.h"
#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/head.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/plan.h"

namespace trireme::test {
namespace {

namespace F = nn::functional;
using comm::Communicator;
using nn::Flow;
using nn::Sequence;
using nn::Style;
using ::testing::AllOf;
using ::testing::HasSubstr;
using verify::Kind;
using verify::Stage;

const BackendUnderTest kThreads{.name = "local", .threads = true, .sizes = {}};

constexpr int64_t kVocab = 12, kWidth = 8, kWide = 16, kPositions = 4;

/// The layers of a small language model; a test replaces the one that it breaks.
struct Layers {
  std::shared_ptr<nn::EmbeddingImpl> table = std::make_shared<nn::EmbeddingImpl>(kVocab, kWidth);
  std::shared_ptr<nn::DropoutImpl> drop = std::make_shared<nn::DropoutImpl>(0.2);
  std::shared_ptr<nn::LayerNormImpl> norm = std::make_shared<nn::LayerNormImpl>(kWidth);
  std::shared_ptr<nn::LinearImpl> up = std::make_shared<nn::LinearImpl>(kWidth, kWide);
  std::shared_ptr<nn::LinearImpl> down = std::make_shared<nn::LinearImpl>(kWide, kWidth);
  Style vocabulary = Style::Vocabulary;
  bool tie = false;
};

struct TinyImpl : nn::ModelImpl {
  TinyImpl(Layers with, const Mesh& mesh, Sequence sequence) : layers(std::move(with)) {
    register_module("table", layers.table);
    register_module("drop", layers.drop);
    register_module("norm", layers.norm);
    register_module("up", layers.up);
    register_module("down", layers.down);
    head = register_module(
        "head",
        nn::Head(kWidth, kVocab,
                 nn::HeadImpl::Options{.tied = layers.tie ? layers.table->weight : at::Tensor()}));
    nn::cut(*this,
            {{"table", layers.vocabulary},
             {"drop", Style::Positions},
             {"norm", Style::Positions},
             {"up", Style::Column},
             {"down", Style::Row},
             {"head", layers.vocabulary}},
            mesh, sequence);
  }
  nn::Loss loss(const Flow& tokens, const at::Tensor& targets) override {
    const Flow x = layers.norm->forward(layers.drop->forward(layers.table->forward(tokens)));
    const Flow wide = layers.up->forward(x);
    return head->loss(layers.down->forward(wide.with(torch::gelu(wide.x()))), targets);
  }
  Layers layers;
  nn::Head head{nullptr};
};

struct Texts : data::Dataset {
  int64_t size() const override { return 64; }
  data::Sample get(int64_t i) const override {
    const auto all = (torch::arange(kPositions + 1, torch::kLong) * (2 * i + 1) + i) % kVocab;
    return {all.narrow(0, 0, kPositions).clone(), all.narrow(0, 1, kPositions).clone()};
  }
};

config::Config small_config() {
  config::Config config;
  config.run.device = "cpu";  // ranks that are threads cannot share layers on a GPU
  config.batch.global = 6;
  config.batch.micro = 2;
  config.optim.lr = 0.01;
  return config;
}

using Change = std::function<void(Layers&, const Mesh&)>;

struct Setting {
  Degrees degrees;
  Sequence sequence = Sequence::Cut;
  Change change = [](Layers&, const Mesh&) {};
};

verify::Report prove(const Communicator& world, const Setting& setting) {
  return verify::verify({.config = small_config(),
                         .model =
                             [&](const Mesh& mesh) {
                               Layers layers;
                               setting.change(layers, mesh);
                               return std::make_shared<TinyImpl>(layers, mesh, setting.sequence);
                             },
                         .data = std::make_shared<Texts>()},
                        world, setting.degrees);
}

/// Runs the prover on a broken model, and expects this to be the first thing that it names.
void expect_finding(const Setting& setting, Kind kind, Stage stage, const std::string& name,
                    const std::string& says) {
  run_world(kThreads, setting.degrees.world(), [&](const Communicator& world) {
    const verify::Report report = prove(world, setting);
    ASSERT_FALSE(report.same()) << "rank " << world.rank() << " was not told";
    EXPECT_EQ(to_string(report.first->diagnosis.kind), to_string(kind)) << report.text();
    EXPECT_EQ(to_string(report.first->stage), to_string(stage)) << report.text();
    EXPECT_EQ(report.first->name, name) << report.text();
    EXPECT_THAT(report.first->sentence(), HasSubstr(says));
  });
}

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
        // Two inputs, the weights of the 9 parameters, 5 seams, loss, 9 gradients, norm.
        EXPECT_EQ(report.rows.size(), 2u + 9 + 5 + 1 + 9 + 1);
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
  });
}

TEST(Verify, ProvesTheModelsWithRecomputationAndCopies) {
  for (const char* kind : {"gpt", "mlp"}) {
    for (const char* recompute : {"none", "block", "selective"}) {
      run_world(kThreads, 4, [&](const Communicator& world) {
        config::Config config = small_config();
        config.model.kind = kind;
        config.model.layers = 2;
        config.model.hidden = 16;
        config.model.heads = 4;
        config.model.kv_heads = 2;
        config.model.seq = kPositions;
        config.model.vocab = kVocab;
        config.model.dropout = 0.1;
        config.memory.recompute = recompute;
        const auto report = verify::verify(
            {config, [&](const Mesh& mesh) { return models::make_model(config, mesh); },
             std::make_shared<Texts>()},
            world, {.tensor = 4});
        EXPECT_TRUE(report.same()) << kind << " " << recompute << "\n" << report.text();
        EXPECT_TRUE(report.skipped.empty()) << report.text();
      });
    }
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
    const auto report = verify::verify(
        {small_config(), [](const Mesh& mesh) { return std::make_shared<ForgetfulImpl>(mesh); },
         std::make_shared<Texts>()},
        world, {.replica = 2});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->name, "extra");
    EXPECT_EQ(report.first->diagnosis.kind, Kind::Missing);
  });
}

/// Its weight's gradient is summed over the ranks, though each has its own rows.
struct ReducedColumnImpl : nn::LinearImpl {
  using LinearImpl::LinearImpl;
  Flow compute(const Flow& in) override {
    const Flow x = region()->enter(in);
    return x.with(nn::linear(x.x(), F::fan_out(weight, region()->group()), bias));
  }
};

TEST(VerifyNames, AColumnShardsGradientThatIsReduced) {
  expect_finding({{.tensor = 2},
                  Sequence::Cut,
                  [](Layers& layers, const Mesh&) {
                    layers.up = std::make_shared<ReducedColumnImpl>(kWidth, kWide);
                  }},
                 Kind::Extra, Stage::Gradient, "up.weight", "must not be reduced there");
}

/// Gathers its input behind autograd's back.
struct HiddenGatherImpl : nn::LinearImpl {
  using LinearImpl::LinearImpl;
  Flow compute(const Flow& in) override {
    Flow x = in;
    {
      const torch::NoGradGuard guard;
      x = region()->enter(in);
    }
    if (region()->size() == 1) x = in;
    return x.with(nn::linear(x.x(), weight, bias));
  }
};

TEST(VerifyNames, AGatherThatAutogradDoesNotSee) {
  expect_finding({{.tensor = 2},
                  Sequence::Cut,
                  [](Layers& layers, const Mesh&) {
                    layers.up = std::make_shared<HiddenGatherImpl>(kWidth, kWide);
                  }},
                 Kind::Missing, Stage::Gradient, "norm.weight", "not seen by autograd");
}

/// Every rank adds the bias before the sum.
struct EagerBiasImpl : nn::LinearImpl {
  using LinearImpl::LinearImpl;
  Flow compute(const Flow& in) override {
    return region()->leave(in.with(nn::linear(in.x(), weight, bias)));
  }
};

TEST(VerifyNames, ARowCutBiasThatIsAddedByEveryRank) {
  for (const Sequence sequence : {Sequence::Cut, Sequence::Whole})
    expect_finding({{.tensor = 4},
                    sequence,
                    [](Layers& layers, const Mesh&) {
                      layers.down = std::make_shared<EagerBiasImpl>(kWide, kWidth);
                    }},
                   Kind::Factor, Stage::Output, "down", "bias is counted 4 times");
}

/// Does not say that its gradients are partial.
struct ForgetfulNormImpl : nn::LayerNormImpl {
  using LayerNormImpl::LayerNormImpl;
  std::map<std::string, Layout> layouts(Style style, Sequence) const override {
    return LayerNormImpl::layouts(style, Sequence::Whole);
  }
};

TEST(VerifyNames, NormGradientsThatAreNotSummedOverThePositions) {
  expect_finding({{.replica = 2, .tensor = 2},
                  Sequence::Cut,
                  [](Layers& layers, const Mesh&) {
                    layers.norm = std::make_shared<ForgetfulNormImpl>(kWidth);
                  }},
                 Kind::Partial, Stage::Gradient, "norm.weight",
                 "the reduction over tensor is missing");
}

/// Counts only this rank's share of the weight, as who forgets the average does.
struct UnaveragedImpl : TinyImpl {
  UnaveragedImpl(const Mesh& mesh)
      : TinyImpl(Layers(), mesh, Sequence::Cut), replicas(mesh.size(Axis::Replica)) {}
  nn::Loss loss(const Flow& tokens, const at::Tensor& targets) override {
    const nn::Loss right = TinyImpl::loss(tokens, targets);
    return {right.sum, right.weight / replicas};
  }
  int replicas;
};

TEST(VerifyNames, AMissingAverage) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    const auto report = verify::verify(
        {small_config(), [](const Mesh& mesh) { return std::make_shared<UnaveragedImpl>(mesh); },
         std::make_shared<Texts>()},
        world, {.replica = 3});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->stage, Stage::Loss);
    EXPECT_EQ(report.first->diagnosis.kind, Kind::Factor);
    EXPECT_THAT(report.first->sentence(), AllOf(HasSubstr("3 times"), HasSubstr("average")));
  });
}

/// Puts the parts of the positions together from the last rank to the first.
struct BackwardsImpl : nn::LinearImpl {
  BackwardsImpl(const Mesh& mesh)
      : LinearImpl(kWidth, kWide),
        group(mesh.group(Axis::Tensor).split("backwards", 0, -mesh.group(Axis::Tensor).rank())) {}
  Flow compute(const Flow& in) override {
    if (group.size() == 1) return LinearImpl::compute(in);
    return {nn::linear(F::gather(in.x(), 1, group), weight, bias), region()->entered(in)};
  }
  Communicator group;
};

TEST(VerifyNames, ShardsInTheWrongOrder) {
  expect_finding(
      {{.tensor = 2},
       Sequence::Cut,
       [](Layers& layers, const Mesh& mesh) { layers.up = std::make_shared<BackwardsImpl>(mesh); }},
      Kind::Permutation, Stage::Output, "up", "another order");
}

/// Takes its chance from the rank.
struct RankDropoutImpl : nn::DropoutImpl {
  RankDropoutImpl(const Mesh& mesh) : DropoutImpl(0.2), rank(mesh.world().rank()) {}
  at::Tensor compute(const at::Tensor& x, const nn::Where* where) override {
    nn::Where other = *where;
    other.step += 1000 * rank;
    return DropoutImpl::compute(x, &other);
  }
  using DropoutImpl::compute;
  int rank;
};

TEST(VerifyNames, AnotherDropoutMaskOnEveryRank) {
  expect_finding({{.replica = 2},
                  Sequence::Cut,
                  [](Layers& layers, const Mesh& mesh) {
                    layers.drop = std::make_shared<RankDropoutImpl>(mesh);
                  }},
                 Kind::Dropout, Stage::Output, "drop", "rank 1 dropped other elements");
}

/// On its last rank the second step starts from the weights of the first.
struct LateImpl : TinyImpl {
  LateImpl(const Mesh& mesh)
      : TinyImpl(Layers(), mesh, Sequence::Cut),
        late(mesh.world().size() > 1 && mesh.world().rank() == mesh.world().size() - 1) {}
  nn::Loss loss(const Flow& tokens, const at::Tensor& targets) override {
    const torch::NoGradGuard guard;
    if (tokens.where->step == 1 && old.empty())
      for (const auto& p : parameters()) old.push_back(p.detach().clone());
    if (late && tokens.where->step == 2 && tokens.where->micro == 0)
      for (std::size_t i = 0; i < old.size(); ++i) parameters()[i].detach().copy_(old[i]);
    const torch::AutoGradMode on(true);
    return TinyImpl::loss(tokens, targets);
  }
  bool late;
  std::vector<at::Tensor> old;
};

TEST(VerifyNames, ARankOnOldWeights) {
  run_world(kThreads, 4, [&](const Communicator& world) {
    const auto report = verify::verify(
        {small_config(), [](const Mesh& mesh) { return std::make_shared<LateImpl>(mesh); },
         std::make_shared<Texts>()},
        world, {.replica = 2, .tensor = 2});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->stage, Stage::Weight) << report.text();
    EXPECT_EQ(report.first->diagnosis.kind, Kind::Stale) << report.text();
    EXPECT_THAT(report.first->sentence(),
                AllOf(HasSubstr("after step 1"), HasSubstr("rank 3 still has")));
  });
}

struct OtherTexts final : Texts {
  data::Sample get(int64_t i) const override { return Texts::get(i + 7); }
};

TEST(VerifyNames, ARankWithAnotherBatch) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    std::shared_ptr<const data::Dataset> data = std::make_shared<Texts>();
    if (world.rank() == 1) data = std::make_shared<OtherTexts>();
    const auto report = verify::verify(
        {small_config(),
         [](const Mesh& mesh) { return std::make_shared<TinyImpl>(Layers(), mesh, Sequence::Cut); },
         data},
        world, {.replica = 2});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->stage, Stage::Input);
    EXPECT_EQ(report.first->diagnosis.kind, Kind::Data);
    EXPECT_THAT(report.first->sentence(), HasSubstr("rank 1 read other samples"));
  });
}

/// Says that its gradient is a partial sum, though every rank has all of it.
struct OverreducedTableImpl : nn::EmbeddingImpl {
  using EmbeddingImpl::EmbeddingImpl;
  std::map<std::string, Layout> layouts(Style style, Sequence sequence) const override {
    std::map<std::string, Layout> all;
    for (const auto& [name, layout] : EmbeddingImpl::layouts(style, sequence))
      all.emplace(name, Layout(layout.whole(), layout.cuts(), {Axis::Tensor}));
    return all;
  }
};

TEST(VerifyNames, ATiedWeightThatIsReducedOnceTooOften) {
  for (const Style vocabulary : {Style::Whole, Style::Vocabulary})
    expect_finding({{.tensor = 2},
                    Sequence::Whole,
                    [vocabulary](Layers& layers, const Mesh&) {
                      layers.table = std::make_shared<OverreducedTableImpl>(kVocab, kWidth);
                      layers.vocabulary = vocabulary;
                      layers.tie = true;
                    }},
                   vocabulary == Style::Whole ? Kind::Factor : Kind::Extra, Stage::Gradient,
                   "table.weight", vocabulary == Style::Whole ? "a sum made twice" : "cut over");
}

TEST(VerifyPlants, EachKindIsFoundOnEveryMesh) {
  using verify::Mistake;
  const std::pair<Mistake, Kind> kinds[] = {
      {Mistake::Average, Kind::Factor},    {Mistake::Reduce, Kind::Partial},
      {Mistake::Order, Kind::Permutation}, {Mistake::Stale, Kind::Stale},
      {Mistake::Data, Kind::Data},         {Mistake::Dropout, Kind::Dropout}};
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

}  // namespace
}  // namespace trireme::test
