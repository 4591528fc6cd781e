// Cutting layers over the tensor axis must not change the answer: losses, norms and weights of one
// rank, in float64, for every way of cutting.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <map>
#include <tuple>

#include "models/registry.h"
#include "support/backends.h"
#include "support/tiny.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

using comm::Communicator;

// Sums of a few hundred terms in another order, three updates long.
constexpr double kSame = 1e-10;
constexpr int kSteps = 3;

/// What is cut, and what it must survive.
struct Case {
  int replica = 1, tensor = 1;
  bool sequence = true, tie = true, masked = false;
  int64_t heads = 4, kv_heads = 4, batch = 8;
  std::string recompute = "none", kind = "gpt";
  int64_t seq = 7, vocab = 37, micro = 2;
};

std::string describe(const Case& c) {
  return fmt::format("{} replica {} tensor {} sequence {} tie {} masked {} heads {}/{} batch {} {}",
                     c.kind, c.replica, c.tensor, c.sequence, c.tie, c.masked, c.heads, c.kv_heads,
                     c.batch, c.recompute);
}

config::Config config_of(const Case& c) {
  config::Config config;
  config.precision.compute = config.precision.reduce = "float64";
  config.model.kind = c.kind;
  config.model.layers = c.kind == "mlp" ? 3 : 2;
  config.model.hidden = 24;
  config.model.heads = c.heads;
  config.model.kv_heads = c.kv_heads;
  config.model.ffn = 50;  // 50 over 4: 13, 13, 12, 12
  config.model.seq = c.seq;
  config.model.vocab = c.vocab;
  config.model.dropout = 0.1;
  config.model.attention_dropout = 0.1;
  config.model.tie = c.tie;
  config.tensor.sequence = c.sequence;
  config.memory.recompute = c.recompute;
  config.batch.global = c.batch;
  config.batch.micro = c.micro;
  config.optim.clip = 0.5;  // below the norm: a wrong one shows
  config.optim.lr = 0.01;
  return config;
}

/// Sequences of which some labels do not count.
struct Labelled final : data::Dataset {
  explicit Labelled(const Case& of) : c(of) {}
  int64_t size() const override { return 5 * c.batch; }
  data::Sample get(int64_t i) const override {
    const auto all = (torch::arange(c.seq + 1, torch::kLong) * (i + 3) + i * i) % c.vocab;
    auto target = all.narrow(0, 1, c.seq).clone();
    if (c.masked) target.masked_fill_((torch::arange(c.seq) + i) % 3 == 0, nn::kIgnored);
    return {all.narrow(0, 0, c.seq).clone(), target};
  }
  Case c;
};

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

Outcome train(const Case& c, const Mesh& mesh) {
  const config::Config config = config_of(c);
  train::Trainer trainer(config, mesh, models::make_model(config, mesh), kSteps);
  const Labelled data(c);
  const data::Order order(3, data.size(), c.batch);
  const auto& replicas = mesh.group(Axis::Replica);
  Outcome outcome;
  for (int step = 1; step <= kSteps; ++step) {
    const auto result = trainer.step(
        step, data::Loader::read(data, order, replicas.rank(), replicas.size(), step - 1));
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
  }
  for (const auto& one : trainer.parameters()) outcome.weights[one.name] = one.tensor.detach();
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& alone, const Mesh& mesh, const Case& c) {
  for (std::size_t i = 0; i < alone.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], alone.losses[i], kSame) << "loss of step " << i + 1;
    EXPECT_NEAR(got.norms[i], alone.norms[i], kSame) << "norm of step " << i + 1;
  }
  // Every rank's part of every weight, placed by the layout.
  const config::Config config = config_of(c);
  const auto model = models::make_model(config, mesh);
  for (const auto& one : nn::parameters_of(*model)) {
    const double largest = alone.weights.at(one.name).abs().max().item<double>();
    for (const Held& held : one.layout.held(mesh.coord(), mesh.degrees())) {
      const at::Tensor wanted = nn::box_of(alone.weights.at(one.name), held.box);
      const at::Tensor part = nn::part_of(got.weights.at(one.name), held);
      ASSERT_EQ(part.sizes(), wanted.sizes()) << one.name;
      EXPECT_LE((part - wanted).abs().max().item<double>(), kSame * largest) << one.name;
    }
  }
}

/// One rank's outcome does not depend on how it would be cut.
const Outcome& alone(const Case& c) {
  static std::map<std::tuple<std::string, bool, bool, std::vector<int64_t>>, Outcome> known;
  const auto key = std::tuple(c.kind, c.tie, c.masked,
                              std::vector{c.heads, c.kv_heads, c.batch, c.seq, c.vocab});
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, train(c, mesh_of_one())).first;
  return found->second;
}

void check(const Case& c, const BackendUnderTest& backend = kThreads) {
  SCOPED_TRACE(describe(c));
  at::set_num_threads(1);
  const Outcome& expected = alone(c);
  run_world(backend, c.replica * c.tensor, [&](const Communicator& world) {
    at::set_num_threads(1);
    const Mesh mesh(world, {.replica = c.replica, .tensor = c.tensor});
    expect_same(train(c, mesh), expected, mesh, c);
  });
}

TEST(Tensor, EveryCutGivesTheAnswerOfOneRank) {
  const char* const recompute[] = {"none", "block", "selective"};
  const std::pair<int64_t, int64_t> heads[] = {{4, 4}, {6, 2}, {6, 6}, {4, 1}, {8, 2}};
  int number = 0;
  for (const int replica : {1, 2, 3}) {
    for (const int tensor : {1, 2, 4}) {
      for (const bool sequence : {true, false}) {
        for (const bool tie : {true, false}) {
          // The other ways take turns, so that every pair of them meets.
          for (const bool masked : {true, false}) {
            const auto [h, k] = heads[number % 5];
            check(
                {.replica = replica,
                 .tensor = tensor,
                 .sequence = sequence,
                 .tie = tie,
                 .masked = masked,
                 .heads = h,
                 .kv_heads = k,
                 .batch = number / 2 % 2 == 0 ? 8 : 5,  // 5 over 3 replicas in micros of 2: uneven
                 .recompute = recompute[number % 3],
                 .kind = "gpt"});
            ++number;
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Tensor, TheMlpIsCutToo) {
  for (const int replica : {1, 2})
    for (const int tensor : {1, 2, 4})
      for (const char* recompute : {"none", "block"})
        check({.replica = replica,
               .tensor = tensor,
               .masked = replica == 2,
               .batch = 5,
               .recompute = recompute,
               .kind = "mlp"});
}

TEST(Tensor, SurvivesFewerPositionsThanRanksAndChunksOfAnUnevenVocabulary) {
  Case c{.tensor = 4, .heads = 4, .kv_heads = 4};
  c.seq = 3;
  check(c);
  // 1026 and 1025 classes, and more rows than a chunk has: all ranks must cut the rows alike.
  Case large{.tensor = 2, .batch = 200};
  large.vocab = 2051;
  large.micro = 200;
  check(large);
}

TEST(Tensor, NamesATokenThatIsNotInTheVocabularyAsOneRankDoes) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const config::Config config = config_of({});
    const auto model = models::make_model(config, Mesh(world, {.tensor = 2}));
    nn::initialize(*model, 1);
    const auto bad = torch::full({1, 7}, 37, torch::kLong);
    EXPECT_THROW(model->loss(bad, torch::zeros({1, 7}, torch::kLong)), Error);
  });
}

TEST(Tensor, CutsTheSameOnProcesses) {
  for (const BackendUnderTest& backend : all_backends()) {
    if (backend.threads) continue;
    check({.replica = 2, .tensor = 2, .masked = true, .heads = 6, .kv_heads = 2, .batch = 5},
          backend);
    check({.tensor = 4, .sequence = false, .tie = false, .heads = 6, .kv_heads = 2}, backend);
  }
}

TEST(Tensor, RefusesWhatCannotBeCutWithTheNumbersOnEveryRank) {
  struct Bad {
    int64_t heads, kv_heads, vocab;
    const char* says;
  };
  for (const Bad& bad :
       {Bad{3, 3, 37, "24 of dim 0 are 3 grains of 8, which can neither be dealt nor copied"},
        Bad{6, 3, 37, "24 of dim 0 are 3 grains of 8, which can neither be dealt nor copied"},
        Bad{4, 4, 3, "3 of dim 0, in grains of 1, cannot be dealt to tensor 4"}}) {
    run_world(kThreads, 4, [&](const Communicator& world) {
      config::Config config = config_of({.heads = bad.heads, .kv_heads = bad.kv_heads});
      config.model.vocab = bad.vocab;
      std::string said;
      try {
        models::make_model(config, Mesh(world, {.tensor = 4}));
      } catch (const ConfigError& error) {
        said = error.what();
      }
      EXPECT_THAT(said, ::testing::HasSubstr(bad.says)) << "rank " << world.rank();
    });
  }
}

}  // namespace
}  // namespace trireme::test
