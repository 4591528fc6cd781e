// Cutting layers over the tensor axis must not change the answer: losses, norms and weights of one
// rank, in float64, for every way of cutting.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using comm::Communicator;

/// One in `every` of the cuts.
void check_cuts(const std::string& kind, int every) {
  const config::Recompute recompute[] = {config::Recompute::None, config::Recompute::Block,
                                         config::Recompute::Selective, config::Recompute::Cheap,
                                         config::Recompute::Sqrt};
  const std::pair<int64_t, int64_t> heads[] = {{4, 4}, {6, 2}, {6, 6}, {4, 1}, {8, 2}};
  int number = 0;
  for (const int replica : {1, 2, 3}) {
    for (const int tensor : {1, 2, 4}) {
      for (const bool sequence : {true, false}) {
        for (const bool tie : {true, false}) {
          // The other ways take turns, so that every pair of them meets.
          for (const bool masked : {true, false}) {
            const auto [h, k] = heads[number % 5];
            const Case one{
                .replica = replica,
                .tensor = tensor,
                .sequence = sequence,
                .tie = tie,
                .masked = masked,
                .heads = h,
                .kv_heads = k,
                .batch = number / 2 % 2 == 0 ? 8 : 5,  // 5 over 3 replicas in micros of 2: uneven
                .recompute = recompute[(number + number / 5) % 5],
                .kind = kind};
            if (number++ % every == 0) check(one);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Tensor, EveryCutGivesTheAnswerOfOneRank) {
  check_cuts("gpt", 1);
}

TEST(Tensor, TheLlamaIsCutToo) {
  check_cuts("llama", 3);
}

TEST(Tensor, TheMlpIsCutToo) {
  for (const int replica : {1, 2})
    for (const int tensor : {1, 2, 4})
      for (const auto recompute : {config::Recompute::None, config::Recompute::Block})
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
