// Loaders: threads that read ahead.
#include "trireme/data/loader.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/sentence.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

/// Samples that say which they are. Some take longer than others, so that threads overtake.
struct Counting : data::Dataset {
  int64_t size() const override { return 10; }
  data::Sample get(int64_t i) const override { return get_in_epoch(i, 0); }
  data::Sample get_in_epoch(int64_t i, int64_t epoch) const override {
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(i * 300));
    ++reads;
    if (i == bad || i == also_bad) throw Error(fmt::format("sample {} is damaged", i));
    return {torch::tensor({i, epoch}), torch::tensor({i})};
  }
  int64_t bad = -1, also_bad = -1;
  bool slow = false;
  mutable std::atomic<int> reads = 0;
};

TEST(Loader, GivesBlocksInOrderWithAnyNumberOfThreads) {
  const data::Order order(1, 10, 4);
  for (const int threads : {1, 2, 5}) {
    const auto dataset = std::make_shared<Counting>();
    dataset->slow = true;
    data::Loader loader(dataset, order, 1, 3, /*first=*/1, threads);
    for (int64_t number = 1; number < 12; ++number) {
      const auto batch = loader.next();
      EXPECT_EQ(batch.number, number);
      EXPECT_EQ(batch.sample_ids, order.block(number, 1, 3));
      const auto whole = data::Loader::read(*dataset, order, 1, 3, number);
      EXPECT_TRUE(batch.inputs.equal(whole.inputs));
      EXPECT_TRUE(batch.targets.equal(whole.targets));
      for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
        EXPECT_EQ(batch.inputs[row][0].item<int64_t>(),
                  batch.sample_ids[static_cast<std::size_t>(row)]);
        EXPECT_EQ(batch.inputs[row][1].item<int64_t>(), number / 3) << "the epoch";
      }
    }
  }
}

TEST(Loader, ABatchWithoutRowsHasTheShapeOfASample) {
  const data::Order order(1, 10, 2);
  data::Loader loader(std::make_shared<Counting>(), order, 2, 3, 0, 2);
  const auto batch = loader.next();
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{0, 2}));
}

TEST(Loader, ThrowsTheErrorOfTheFirstRowWithItsBatch) {
  const data::Order order(1, 10, 4);
  const auto second = order.batch(1);
  for (const int threads : {1, 3}) {
    const auto broken = std::make_shared<Counting>();
    broken->bad = second[1];
    broken->also_bad = second[3];
    data::Loader loader(broken, order, 0, 1, 0, threads);
    EXPECT_EQ(loader.next().number, 0) << "what was read before it is given";
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(outcome_of<Error>([&] { loader.next(); }),
                fmt::format("sample {} is damaged", second[1]));
  }
}

TEST(Loader, ReadsThreeBatchesAheadAndNoMore) {
  const auto dataset = std::make_shared<Counting>();
  const data::Order order(1, 10, 2);
  data::Loader loader(dataset, order, 0, 1, 0, 4);
  loader.next();  // three others may be started now
  for (int i = 0; i < 100 && dataset->reads < 8; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(dataset->reads, 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(dataset->reads, 8);
}

TEST(Loader, EndsAtOnceWhileItsThreadsRead) {
  const auto dataset = std::make_shared<Counting>();
  dataset->slow = true;
  for (int i = 0; i < 20; ++i) data::Loader(dataset, data::Order(1, 10, 10), 0, 1, 0, 3);
  EXPECT_LE(dataset->reads, 20 * 6) << "a sample or two of each thread, and not three batches";
}

}  // namespace
}  // namespace trireme::test
