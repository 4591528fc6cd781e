// Plans: patterns of names that cut a model of one's own.
#include "trireme/nn/plan.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/backends.h"
#include "support/sentence.h"
#include "support/tiny.h"
#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/head.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/parameters.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using nn::Flow;
using ::testing::AllOf;
using ::testing::HasSubstr;
using enum nn::Style;

/// A user's block: up, GELU, down, and a norm.
struct BlockImpl : nn::LayerImpl {
  BlockImpl(int64_t width, int64_t wide)
      : norm(register_module("norm", nn::LayerNorm(width))),
        up(register_module("up", nn::Linear(width, wide))),
        down(register_module("down", nn::Linear(wide, width))) {}
  Flow compute(const Flow& in) override {
    const Flow inner = up->forward(norm->forward(in));
    return down->forward(inner.with(torch::gelu(inner.x())));
  }
  nn::LayerNorm norm;
  nn::Linear up, down;
};

nn::Sequential two_blocks() {
  return nn::Sequential(std::vector<std::shared_ptr<nn::LayerImpl>>{
      std::make_shared<BlockImpl>(6, 10), std::make_shared<BlockImpl>(6, 10)});
}

TEST(Patterns, StopAtDots) {
  EXPECT_TRUE(nn::matches("*.up", "0.up"));
  EXPECT_TRUE(nn::matches("h.*.mlp.c_*", "h.11.mlp.c_fc"));
  EXPECT_TRUE(nn::matches("*", "head"));
  EXPECT_TRUE(nn::matches("a*c*", "abc"));
  EXPECT_TRUE(nn::matches("a*", "a"));
  EXPECT_FALSE(nn::matches("*.up", "0.mlp.up"));
  EXPECT_FALSE(nn::matches("*", "h.0"));
  EXPECT_FALSE(nn::matches("up", "up2"));
  EXPECT_FALSE(nn::matches("", "up"));
}

TEST(Plan, CutsAUsersModelWithoutChangingWhatItComputes) {
  for (const nn::Sequence sequence : {nn::Sequence::Whole, nn::Sequence::Cut}) {
    auto alone = two_blocks();
    alone->to(torch::kDouble);
    nn::initialize(*alone, 5);
    torch::manual_seed(1);
    const auto input = torch::randn({3, 5, 6}, torch::kDouble);
    const auto x = input.clone().requires_grad_();
    alone->forward(x).pow(2).sum().backward();
    run_world(kThreads, 4, [&](const Communicator& world) {
      const Mesh mesh(world, {.tensor = 4});
      auto model = two_blocks();
      nn::cut(*model, {{"*.norm", Positions}, {"*.up", Column}, {"*.down", Row}}, mesh, sequence);
      model->to(torch::kDouble);
      nn::initialize(*model, 5);
      const auto region = std::dynamic_pointer_cast<BlockImpl>(model->layers()[0])->up->region();
      // Where positions are cut the first norm has this rank's part of them.
      const bool cut = sequence == nn::Sequence::Cut;
      const Range part = even_range(5, 4, world.rank());
      const auto mine = input.clone().requires_grad_();
      Flow flow(mine);
      if (cut) flow = {mine.narrow(1, part.begin, part.count), region->left(flow, 5)};
      const Flow out = model->forward(flow);
      out.x().pow(2).sum().backward();
      const auto expected = alone->forward(input);
      const auto got = cut ? nn::functional::join(out.x(), 1, world, 5) : out.x();
      EXPECT_LE((got - expected).abs().max().item<double>(), 1e-12);
      for (const auto& one : nn::parameters_of(*model)) {
        const auto whole = alone->named_parameters()[one.name].grad();
        at::Tensor gradient = one.tensor.grad().clone();
        if (!one.layout.partial().empty()) world.all_reduce(gradient).wait();
        for (const LocalBox& held : one.layout.local_boxes(mesh.coord(), mesh.degrees())) {
          const at::Tensor wanted = nn::box_of(whole, held.box);
          EXPECT_LE((nn::part_of(gradient, held) - wanted).abs().max().item<double>(), 1e-11)
              << one.name;
        }
      }
      EXPECT_EQ(model->named_parameters()["0.up.weight"].sizes(),
                (std::vector<int64_t>{even_range(10, 4, world.rank()).count, 6}));
    });
  }
}

TEST(Plan, SaysWhatItCannotDoAndCutsNothing) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.tensor = 2});
    const auto refusal = [&](torch::nn::Module& module, const nn::Plan& plan) {
      return sentence_of<MisuseError>([&] { nn::cut(module, plan, mesh); });
    };
    auto model = two_blocks();
    EXPECT_EQ(refusal(*model, {{"*.up", Column}, {"*.gate", Column}}),
              "plan: \"*.gate\" (column) matches no layer; there are 0, 0.norm, 0.up, 0.down, 1, "
              "1.norm, 1.up, 1.down");
    EXPECT_EQ(
        refusal(*model, {{"*.up", Column}, {"0.*", Row}}),
        "plan: \"0.*\" (row) and \"*.up\" (column) both match '0.up'; let only one of them match");
    EXPECT_THAT(refusal(*model, {{"*.norm", Column}}),
                AllOf(HasSubstr("cannot cut '0.norm'"), HasSubstr("cannot be cut by column")));
    EXPECT_EQ(model->named_parameters()["0.up.weight"].size(0), 10) << "nothing was cut";

    torch::nn::Sequential torchs(torch::nn::Linear(4, 4));
    EXPECT_THAT(refusal(*torchs, {{"0", Column}}),
                AllOf(HasSubstr("matches '0'"), HasSubstr("torch::nn::Linear"),
                      HasSubstr("nn::Linear instead")));

    nn::Sequential narrow(
        std::vector<std::shared_ptr<nn::LayerImpl>>{std::make_shared<nn::LinearImpl>(4, 1)});
    EXPECT_THAT(refusal(*narrow, {{"0", Column}}),
                AllOf(HasSubstr("cannot cut '0'"),
                      HasSubstr("1 of dim 0, in grains of 1, cannot be dealt to tensor 2")));

    nn::cut(*model, {{"*.up", Column}}, mesh);
    EXPECT_THAT(refusal(*model, {{"*.up", Column}}), HasSubstr("is cut already, by column"));
    auto late = two_blocks();
    nn::initialize(*late, 1);
    EXPECT_THAT(refusal(*late, {{"*.up", Column}}), HasSubstr("cut before nn::initialize"));
  });
}

TEST(Plan, WantsTiedWeightsCutAlike) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    struct TiedImpl : nn::LayerImpl {
      nn::Embedding table{register_module("table", nn::Embedding(8, 4))};
      nn::Head head{register_module(
          "head", nn::Head(4, 8, nn::HeadImpl::Options{.bias = false, .tied = table->weight}))};
    } model;
    nn::cut(model, {{"table", Vocabulary}}, Mesh(world, {.tensor = 2}));
    EXPECT_THAT(sentence_of<MisuseError>([&] {
                  model.head->forward(torch::ones({1, 4}));
                }),
                HasSubstr("cut both by vocabulary, or neither"));
  });
}

TEST(Plan, FindsATiedWeightWhicheverLayerWasRegisteredFirst) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    struct TiedImpl : nn::LayerImpl {
      TiedImpl() {
        nn::Embedding made(8, 4);
        head = register_module(
            "head", nn::Head(4, 8, nn::HeadImpl::Options{.bias = false, .tied = made->weight}));
        table = register_module("table", made);
      }
      nn::Embedding table{nullptr};
      nn::Head head{nullptr};
    } model;
    nn::cut(model, {{"table", Vocabulary}, {"head", Vocabulary}}, Mesh(world, {.tensor = 2}));
    nn::initialize(model, 1);
    const auto all = nn::parameters_of(model);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].name, "head.weight");
    EXPECT_EQ(all[0].layout.whole(), (std::vector<int64_t>{8, 4}));
    EXPECT_TRUE(all[0].init.has_value());
  });
}

TEST(Plan, RefusesLayersThatWouldForgetASum) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.tensor = 2});
    // A norm that no pattern names, behind positions that are cut.
    nn::Sequential model(std::vector<std::shared_ptr<nn::LayerImpl>>{
        std::make_shared<nn::LinearImpl>(4, 4), std::make_shared<nn::LayerNormImpl>(4)});
    nn::cut(*model, {{"0", Row}}, mesh, nn::Sequence::Cut);
    nn::initialize(*model, 1);
    EXPECT_THAT(sentence_of<MisuseError>([&] {
                  model->forward(torch::ones({1, 4, 2}));
                }),
                AllOf(HasSubstr("'1'"), HasSubstr("name it as Positions")));
    nn::Sequential foreign(std::vector<std::shared_ptr<nn::LayerImpl>>{
        nn::as_layer(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))});
    EXPECT_THAT(sentence_of<MisuseError>([&] {
                  nn::cut(*foreign, {{"0", Positions}}, mesh, nn::Sequence::Cut);
                }),
                HasSubstr("torch module"));
    nn::Dropout drop(0.1, /*width=*/8);
    nn::initialize(*drop, 1);
    EXPECT_THAT(sentence_of<MisuseError>([&] {
                  drop->forward(Flow(torch::ones({1, 4}), where({1})));
                }),
                HasSubstr("4 of its 8 features"));
  });
}

/// A norm of each head, between a Column and a Row: whole weights, other heads on every rank.
struct HeadNormImpl : nn::LayerImpl {
  nn::Linear up{register_module("up", nn::Linear(4, 8))};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(2))};
  nn::Linear down{register_module("down", nn::Linear(8, 4))};
  Flow compute(const Flow& in) override {
    const Flow wide = up->forward(in);
    const auto heads = wide.x().view({wide.x().size(0), -1, 2});
    return down->forward(wide.with(norm->forward(heads).reshape_as(wide.x())));
  }
};

TEST(Plan, SumsTheGradientsOfWhatIsInside) {
  HeadNormImpl alone;
  alone.to(torch::kDouble);
  nn::initialize(alone, 3);
  const auto x = torch::linspace(-1, 1, 12, torch::kDouble).view({3, 4});
  alone.forward(x).pow(3).sum().backward();
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.tensor = 2});
    HeadNormImpl model;
    nn::cut(model, {{"up", Column}, {"norm", Inside}, {"down", Row}}, mesh);
    model.to(torch::kDouble);
    nn::initialize(model, 3);
    parallel::DataParallel replicas(model, mesh);
    replicas.backward({model.forward(x).pow(3).sum(), torch::tensor(1.0, torch::kDouble)});
    replicas.finish();
    EXPECT_LE((model.norm->weight.grad() - alone.norm->weight.grad()).abs().max().item<double>(),
              1e-12);
  });
}

TEST(Plan, UnderSequenceParallelismNeedsToKnowThePositions) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    nn::Sequential model(
        std::vector<std::shared_ptr<nn::LayerImpl>>{std::make_shared<nn::LinearImpl>(4, 4)});
    nn::cut(*model, {{"0", Column}}, Mesh(world, {.tensor = 2}), nn::Sequence::Cut);
    nn::initialize(*model, 1);
    EXPECT_THAT(sentence_of<MisuseError>([&] {
                  model->forward(torch::ones({1, 2, 4}));
                }),
                HasSubstr("pass on the Flow"));
  });
}

}  // namespace
}  // namespace trireme::test
