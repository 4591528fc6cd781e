// Several sources of samples, mixed by weight.
#include "trireme/data/blend.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "trireme/data/loader.h"

namespace trireme::test {
namespace {

using ::testing::ElementsAre;

/// Samples that say which they are: [source, index, epoch of the source].
struct Numbered : data::Dataset {
  Numbered(int64_t source, int64_t samples) : source_(source), samples_(samples) {}
  int64_t size() const override { return samples_; }
  data::Sample get(int64_t i) const override { return get_in_epoch(i, 0); }
  data::Sample get_in_epoch(int64_t i, int64_t epoch) const override {
    return {torch::tensor({source_, i, epoch}), torch::tensor({source_})};
  }
  std::string identity() const override { return fmt::format("numbered {}", source_); }
  int64_t source_, samples_;
};

double worst_difference(const std::vector<double>& weights, int64_t positions) {
  const data::BlendRule rule(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts(weights.size());
  double worst = 0;
  for (int64_t n = 0; n < positions; ++n) {
    const auto turn = rule.turn_at(n);
    EXPECT_EQ(turn.use, counts[turn.source]) << "no use is left out or given twice";
    ++counts[turn.source];
    for (std::size_t i = 0; i < weights.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(counts[i]) -
                                       weights[i] / sum * static_cast<double>(n + 1)));
    if (n % 97 == 0) {
      EXPECT_EQ(rule.uses(n + 1), counts);
    }
  }
  return worst;
}

TEST(BlendRule, IsTheOneThatItsPictureShows) {
  const data::BlendRule rule({5, 2, 1});
  std::string turns;
  for (int64_t i = 0; i < 16; ++i) turns += "abc"[rule.turn_at(i).source];
  EXPECT_EQ(turns, "abaacabaabaacaba");
}

TEST(BlendRule, EverySourceIsAlwaysNearItsShare) {
  EXPECT_LE(worst_difference({1, 1}, 100), 0.5);
  EXPECT_LE(worst_difference({0.7, 0.3}, 1000), 0.5 + 1e-9);
  EXPECT_LE(worst_difference({1, 999}, 3000), 0.5 + 1e-9);
  // Fibonacci's numbers make the deepest tree.
  EXPECT_LE(worst_difference({1, 1, 2, 3, 5, 8, 13, 21, 34, 55}, 500), 1.68);
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<double> weights(2 + random() % 10);
    for (double& weight : weights) weight = round % 2 ? 1 + random() % 50 : random() * 1e-9 + 1e-3;
    EXPECT_LE(worst_difference(weights, 2000), 1.68);
  }
}

TEST(BlendRule, IsExactAfterAPeriodAndFarAway) {
  const data::BlendRule rule({0.7, 0.1, 0.2});
  EXPECT_THAT(rule.uses(10), ElementsAre(7, 1, 2)) << "decimals are taken as they are written";
  EXPECT_THAT(rule.uses(10'000'000'000'000), ElementsAre(7e12, 1e12, 2e12));
  const auto here = rule.turn_at(3), far = rule.turn_at(10'000'000'000'003);
  EXPECT_EQ(far.source, here.source);
  EXPECT_THAT(data::BlendRule({1e-300, 3}).uses(1000), ElementsAre(0, 1000));
}

TEST(Blend, SourcesRepeatInNewOrdersAndMissNothing) {
  const data::Blend blend(
      {{std::make_shared<Numbered>(0, 5), 3}, {std::make_shared<Numbered>(1, 40), 1}},
      /*seed=*/9);
  EXPECT_EQ(blend.size(), 45);
  std::map<std::pair<std::size_t, int64_t>, std::vector<int64_t>> rounds;
  for (int64_t i = 0; i < 4 * 45; ++i) {
    const auto place = blend.place_of(i % 45, i / 45);
    rounds[{place.source, place.epoch}].push_back(place.index);
    const auto sample = blend.get_in_epoch(i % 45, i / 45).input;
    EXPECT_TRUE(sample.equal(
        torch::tensor({static_cast<int64_t>(place.source), place.index, place.epoch})));
  }
  EXPECT_EQ(rounds.size(), 27 + 2u) << "135 of 5 samples, 45 of 40";
  for (const auto& [round, indices] : rounds) {
    const std::set<int64_t> different(indices.begin(), indices.end());
    EXPECT_EQ(different.size(), indices.size());
    if (round != std::pair<std::size_t, int64_t>{1, 1}) {
      EXPECT_EQ(different.size(), round.first == 0 ? 5u : 40u);
    }
  }
  EXPECT_NE((rounds[{0, 0}]), (rounds[{0, 1}]));
}

TEST(Blend, IsUsedInItsOwnOrderOnEveryMeshAndResumes) {
  const auto blend = std::make_shared<data::Blend>(
      std::vector<data::Blend::Source>{{std::make_shared<Numbered>(0, 7), 1},
                                       {std::make_shared<Numbered>(1, 6), 2}},
      3);
  const data::Order order(3, *blend, 4);
  std::vector<at::Tensor> all;
  int64_t position = 0;
  for (int64_t number = 0; number < 12; ++number) {
    const auto batch = data::Loader::read(*blend, order, 0, 1, number);
    for (int64_t row = 0; row < batch.inputs.size(0); ++row, ++position) {
      const auto place = blend->place_of(position % 13, position / 13);
      EXPECT_EQ(batch.targets[row].item<int64_t>(), static_cast<int64_t>(place.source));
    }
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < 3; ++rank)
      parts.push_back(data::Loader::read(*blend, order, rank, 3, number).inputs);
    EXPECT_TRUE(torch::cat(parts).equal(batch.inputs));
    all.push_back(batch.inputs);
  }
  data::Loader later(blend, order, 0, 1, /*first=*/7, 3);
  for (std::size_t number = 7; number < 12; ++number)
    EXPECT_TRUE(later.next().inputs.equal(all[number]));
}

TEST(Blend, SaysWhatItIsMadeOf) {
  const auto source = [](int64_t i) { return std::make_shared<Numbered>(i, 3); };
  EXPECT_EQ(data::Blend({{source(0), 0.5}, {source(1), 2}}, 1).identity(),
            "0.5 x (numbered 0), 2 x (numbered 1)");
  EXPECT_EQ(data::Blend({{source(0), 1}}, 1).floor(), std::nullopt);
}

}  // namespace
}  // namespace trireme::test
