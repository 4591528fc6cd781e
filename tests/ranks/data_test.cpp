// The order of samples, generated languages.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <set>

#include "trireme/data/markov.h"
#include "trireme/data/order.h"

namespace trireme::test {
namespace {

TEST(Order, IsAPermutationOfEveryEpochAndTheSameForEveryWorld) {
  for (const int64_t samples : {1, 2, 3, 17, 64, 1000}) {
    const data::Order order(3, samples, 7);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> seen;
      for (int64_t b = 0; b < order.batches_per_epoch(); ++b) {
        const int64_t number = epoch * order.batches_per_epoch() + b;
        const auto batch = order.batch(number);
        for (const int size : {2, 3, 5, 11}) {
          std::vector<int64_t> joined, sizes;
          for (int rank = 0; rank < size; ++rank) {
            const auto block = order.block(number, rank, size);
            sizes.push_back(static_cast<int64_t>(block.size()));
            joined.insert(joined.end(), block.begin(), block.end());
          }
          EXPECT_EQ(joined, batch);
          EXPECT_EQ(order.largest_block(number, size), *std::ranges::max_element(sizes));
          EXPECT_EQ(order.smallest_block(number, size), *std::ranges::min_element(sizes));
        }
        seen.insert(seen.end(), batch.begin(), batch.end());
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(static_cast<int64_t>(seen.size()), samples);
      for (int64_t i = 0; i < samples; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
    }
    if (samples > 64) {
      EXPECT_NE(order.batch(0), order.batch(order.batches_per_epoch()));
    }
  }
}

TEST(Markov, HasTheEntropyThatItSays) {
  for (const int64_t classes : {16, 40}) {
    const data::Markov language(
        {.vocab = 64, .seq = 2000, .samples = 40, .seed = 3, .classes = classes});
    double nats = 0, count = 0;
    for (int64_t i = 0; i < language.size(); ++i) {
      const auto sample = language.get(i);
      const auto* input = sample.input.data_ptr<int64_t>();
      const auto* target = sample.target.data_ptr<int64_t>();
      for (int64_t t = 1; t < 2000; ++t, ++count)
        nats -= std::log(language.chance(static_cast<int>(input[t - 1] % classes),
                                         static_cast<int>(input[t] % classes),
                                         static_cast<int>(target[t] % classes)) *
                         language.chance_in_class(target[t]));
    }
    EXPECT_NEAR(nats / count, *language.floor(), 0.02) << "the mean surprise of 80000 tokens";
    EXPECT_LT(*language.floor(), std::log(64) - 0.5);
  }
}

TEST(Markov, OfAnOddOrTinyVocabularyIsALanguageToo) {
  for (const int64_t vocab : {2, 3, 16, 17, 50257}) {
    const data::Markov language({.vocab = vocab, .seq = 64, .samples = 3, .seed = 1});
    const auto sample = language.get(2);
    EXPECT_LT(sample.input.max().item<int64_t>(), vocab);
    EXPECT_TRUE(sample.input.narrow(0, 1, 63).equal(sample.target.narrow(0, 0, 63)));
    EXPECT_GT(*language.floor(), 0);
    EXPECT_LT(*language.floor(), std::log(vocab));
  }
}

TEST(Order, CountsSamplesAndBatchesAlsoWhereTheLastBatchIsShort) {
  for (const int64_t batch : {1, 4, 7, 10, 13}) {
    const data::Order order(1, 10, batch);
    int64_t samples = 0;
    for (int64_t number = 0; number < 30; ++number) {
      EXPECT_EQ(order.samples_before(number), samples) << batch;
      EXPECT_EQ(order.batches_in(samples), number) << batch;
      const auto count = static_cast<int64_t>(order.batch(number).size());
      EXPECT_EQ(order.batches_in(samples + count - 1), number) << batch;
      samples += count;
    }
  }
}

}  // namespace
}  // namespace trireme::test
