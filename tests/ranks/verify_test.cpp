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
using verify::Kind;

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
    const auto said =
        prove(world, {{.tensor = 2}, Sequence::Cut, [](Layers& layers, const Mesh&) {
                        layers.up->set_output(std::vector<Cut>{{.axis = Axis::Tensor, .dim = -1}});
                      }});
    EXPECT_TRUE(said.same() && said.skipped.empty()) << said.text();
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
