// Mistakes that people make, each in a layer, a model or a group of its own: the prover names each.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/tiny_model.h"

namespace trireme::test {
namespace {

namespace F = nn::functional;
using comm::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;
using verify::MistakeKind;
using verify::TensorRole;

/// Runs the prover on a broken model, and expects this to be the first thing that it names.
void expect_finding(const Setting& setting, MistakeKind kind, TensorRole role,
                    const std::string& name, const std::string& says) {
  run_world(kThreads, setting.degrees.world(), [&](const Communicator& world) {
    const verify::Report report = prove(world, setting);
    ASSERT_FALSE(report.same()) << "rank " << world.rank() << " was not told";
    EXPECT_EQ(to_string(report.first->diagnosis.kind), to_string(kind)) << report.text();
    EXPECT_EQ(to_string(report.first->role), to_string(role)) << report.text();
    EXPECT_EQ(report.first->name, name) << report.text();
    EXPECT_THAT(report.first->sentence(), HasSubstr(says));
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
                 MistakeKind::Extra, TensorRole::Gradient, "up.weight",
                 "must not be reduced there");
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
                 MistakeKind::Missing, TensorRole::Gradient, "norm.weight", "not seen by autograd");
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
                   MistakeKind::Factor, TensorRole::Output, "down", "bias is counted 4 times");
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
                 MistakeKind::Partial, TensorRole::Gradient, "norm.weight",
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
    const auto report = prove_own<UnaveragedImpl>(world, {.replica = 3});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->role, TensorRole::Loss);
    EXPECT_EQ(report.first->diagnosis.kind, MistakeKind::Factor);
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
      MistakeKind::Permutation, TensorRole::Output, "up", "another order");
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
                 MistakeKind::Dropout, TensorRole::Output, "drop", "rank 1 dropped other elements");
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
    const auto report = prove_own<LateImpl>(world, {.replica = 2, .tensor = 2});
    ASSERT_FALSE(report.same());
    EXPECT_EQ(report.first->role, TensorRole::Weight) << report.text();
    EXPECT_EQ(report.first->diagnosis.kind, MistakeKind::Stale) << report.text();
    EXPECT_THAT(report.first->sentence(),
                AllOf(HasSubstr("after step 1"), HasSubstr("on rank 3 is still")));
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
    EXPECT_EQ(report.first->role, TensorRole::Input);
    EXPECT_EQ(report.first->diagnosis.kind, MistakeKind::Data);
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
                   vocabulary == Style::Whole ? MistakeKind::Factor : MistakeKind::Extra,
                   TensorRole::Gradient, "table.weight",
                   vocabulary == Style::Whole ? "a sum made twice" : "cut over");
}

}  // namespace
}  // namespace trireme::test
