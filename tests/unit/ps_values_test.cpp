// What a server computes: rules, rows, and the small containers under them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "sim/random.h"
#include "trireme/core/error.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/data_order.h"
#include "trireme/ps/interval_set.h"
#include "trireme/ps/large_pages.h"
#include "trireme/ps/row_index.h"
#include "trireme/ps/storage.h"
#include "trireme/ps/stored_values.h"
#include "trireme/ps/values.h"
#include "trireme/ps/view.h"

namespace trireme::ps {
namespace {

TEST(IntervalSet, IsASetWhateverTheOrder) {
  sim::Random random(1);
  std::set<uint64_t> expected;
  IntervalSet set;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t number = random.below(600);
    EXPECT_EQ(set.insert(number), expected.insert(number).second);
  }
  for (uint64_t number = 0; number < 700; ++number)
    EXPECT_EQ(set.contains(number), expected.contains(number)) << number;
  EXPECT_EQ(set.size(), expected.size());
  EXPECT_EQ(from_bytes<IntervalSet>(to_bytes(set)), set);
}

TEST(IntervalSet, ARunIsOneEntry) {
  IntervalSet set;
  for (const uint64_t number : {4, 2, 0, 3, 1}) set.insert(number);
  EXPECT_EQ(set.runs(), 1);
}

TEST(RowIndex, FindsWhatAMapFindsThroughManyErasures) {
  sim::Random random(2);
  RowIndex index;
  std::map<uint64_t, uint32_t> expected;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const uint64_t key = random.below(300) << (random.below(3) * 20);
    if (!expected.contains(key)) {
      index.insert(key, i);
      expected[key] = i;
    } else if (random.chance(0.7)) {
      index.erase(key);
      expected.erase(key);
    }
  }
  EXPECT_EQ(index.size(), expected.size());
  for (uint64_t shift = 0; shift < 3; ++shift)
    for (uint64_t low = 0; low < 300; ++low) {
      const uint64_t key = low << (shift * 20);
      const uint32_t row = expected.contains(key) ? expected[key] : RowIndex::kNone;
      ASSERT_EQ(index.find(key), row) << key;
    }
}

TEST(ConsistentHashing, AServerThatComesTakesItsShareAndMovesFewOthers) {
  constexpr uint32_t kRanges = 256;
  const auto before = place_ranges(kRanges, {0, 1, 2}, 2);
  const auto after = place_ranges(kRanges, {0, 1, 2, 3}, 2);
  size_t taken = 0, moved = 0;
  std::map<uint32_t, size_t> heads, copies;
  for (RangeId range = 0; range < kRanges; ++range) {
    ASSERT_EQ(before[range].size(), 2);
    ASSERT_EQ(after[range].size(), 2);
    EXPECT_NE(after[range][0], after[range][1]);
    ++heads[after[range][0]];
    for (const uint32_t server : after[range]) {
      ++copies[server];
      const bool was_here = std::ranges::find(before[range], server) != before[range].end();
      taken += server == 3 ? 1 : 0;
      moved += server != 3 && !was_here ? 1 : 0;
    }
  }
  for (uint32_t server = 0; server < 4; ++server) {
    EXPECT_EQ(heads[server], kRanges / 4);
    EXPECT_LE(copies[server], kRanges / 2 + 4) << "a full one takes what no other can";
  }
  EXPECT_GT(taken, kRanges / 4);
  EXPECT_LT(moved, kRanges / 4) << "hashing modulo would move three quarters";
}

TEST(ConsistentHashing, EveryRangeHasItsCopiesHoweverFewServersThereAre) {
  for (const uint32_t servers : {1, 2, 3, 5})
    for (const uint32_t ranges : {1, 2, 7, 16})
      for (size_t count = 1; count <= servers; ++count) {
        std::vector<uint32_t> all;
        for (uint32_t server = 0; server < servers; ++server) all.push_back(server * 7);
        for (const auto& chain : place_ranges(ranges, all, count))
          EXPECT_EQ(std::set(chain.begin(), chain.end()).size(), count);
      }
}

TEST(DataOrder, TasksCoverEveryBatchOnce) {
  for (const auto& [workers, begin] : std::vector<std::pair<uint32_t, uint64_t>>{
           {1, 0}, {2, 0}, {3, 0}, {1, 5}, {2, 14}, {3, 12}, {3, 24}})
    for (const uint64_t steps : {1, 4, 5, 100})
      for (const Consistency consistency : {Consistency::Lockstep, Consistency::Free}) {
        JobConfig job;
        job.workers = workers;
        job.data = {.begin = begin, .epochs = 2, .batches_per_epoch = 12, .steps_per_task = steps};
        job.tables = {{.consistency = consistency}};
        std::set<Batch> batches;
        for (Task task = 0; task < tasks_of(job); ++task)
          for (const Batch batch : batches_of(job, task)) {
            EXPECT_TRUE(batches.insert(batch).second);
            EXPECT_TRUE(!job.in_lanes() || batch % workers == task % workers);
          }
        EXPECT_EQ(batches.size(), 24 - begin);
        if (begin == 24) continue;
        EXPECT_EQ(*batches.begin(), begin);
        EXPECT_EQ(*batches.rbegin(), 23);
      }
}

template <class T>
std::vector<T> after_two_steps(const RulePtr& rule) {
  std::vector<T> values{1, -2}, state(rule->state().elems(2));
  std::vector<T> first{T(0.5), T(2)}, second{T(-2), T(2)};
  rule->apply(Row<T>{values, state}, first, {.rate = 1});
  rule->apply(Row<T>{values, state}, second, {.rate = 0.5, .divisor = 2});
  return values;
}

constexpr double kDouble = 1e-14, kFloat = 1e-6;  // a few roundings of numbers about 1

void expect_steps(const RulePtr& rule, double first, double second) {
  EXPECT_NEAR(after_two_steps<double>(rule)[0], first, kDouble);
  EXPECT_NEAR(after_two_steps<double>(rule)[1], second, kDouble);
  EXPECT_NEAR(after_two_steps<float>(rule)[0], first, kFloat);
  EXPECT_NEAR(after_two_steps<float>(rule)[1], second, kFloat);
}

TEST(Rule, SgdAndMomentumByHand) {
  expect_steps(make_sgd({.lr = 0.1}), 1 - 0.05 + 0.05, -2 - 0.2 - 0.05);
  // v = 0.5, 2; then 0.9 v + g = -0.55, 2.8
  expect_steps(make_sgd({.lr = 0.1, .momentum = 0.9}), 1 - 0.05 + 0.05 * 0.55,
               -2 - 0.2 - 0.05 * 2.8);
}

TEST(Rule, AdagradByHand) {
  const AdagradOptions options{.lr = 0.1, .epsilon = 0};
  expect_steps(make_adagrad(options), 1 - 0.1 + 0.05 / std::sqrt(1.25),
               -2 - 0.1 - 0.05 / std::sqrt(5.0));
  const double h1 = (0.25 + 4) / 2, h2 = h1 + 1;
  expect_steps(make_rowwise_adagrad(options), 1 - 0.05 / std::sqrt(h1) + 0.05 / std::sqrt(h2),
               -2 - 0.2 / std::sqrt(h1) - 0.05 / std::sqrt(h2));
}

TEST(Rule, AdamWByHand) {
  const AdamWOptions o{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.5, .epsilon = 0, .weight_decay = 0.1};
  // The first step moves by lr whatever the gradient; then m = -0.375, v = 0.5625 of 0.5, -1.
  const double x1 = (1 - 0.01) * 1 - 0.1;
  const double step = 0.05 / 0.75 * -0.375 / std::sqrt(0.5625 / 0.75);
  EXPECT_NEAR(after_two_steps<double>(make_adamw(o))[0], (1 - 0.005) * x1 - step, kDouble);
}

TEST(Rule, AveragingMovesTowardsWhatIsPushed) {
  expect_steps(make_averaging(1), 0.5 + 0.5 * (-1 - 0.5), 2 + 0.5 * (1 - 2.0));
}

void push(Storage& storage, const std::vector<uint64_t>& keys, const std::string& values) {
  const Gradient one{keys, values};
  storage.apply({&one, 1}, {});
}

JobConfig job_of(TableConfig table) {
  JobConfig job;
  job.ranges = 1;
  job.seed = 5;
  job.tables = {std::move(table)};
  return job;
}

/// A sparse table gives what the same embedding gives when it is trained densely, with a gradient
/// of zero for the rows that a step does not touch.
void expect_sparse_is_dense(const RulePtr& row_rule) {
  constexpr uint64_t kRows = 40, kElems = 3;
  const JobConfig job = job_of({.name = "rows",
                                .kind = TableKind::Sparse,
                                .elems = kElems,
                                .rule = row_rule,
                                .init_scale = 0.5});
  const auto sparse = make_storage({&job, 0, 0});
  std::vector<std::vector<float>> dense(kRows), state(kRows);
  for (uint64_t key = 0; key < kRows; ++key) {
    dense[key] = values_of<float>(sparse->read(std::vector<uint64_t>{key}).view());
    state[key].resize(row_rule->state().elems(kElems));
  }
  sim::Random random(3);
  for (int step = 0; step < 200; ++step) {
    std::vector<uint64_t> keys;
    std::vector<float> pushed;
    for (uint64_t key = 0; key < kRows; ++key) {
      std::vector<float> gradient(kElems);
      if (random.chance(0.2)) {
        keys.push_back(key);
        for (float& value : gradient) value = static_cast<float>(random.below(100)) / 64 - 0.7F;
        pushed.insert(pushed.end(), gradient.begin(), gradient.end());
      }
      row_rule->apply(Row<float>{dense[key], state[key]}, gradient, {});
    }
    push(*sparse, keys, bytes_of_values<float>(pushed));
  }
  for (uint64_t key = 0; key < kRows; ++key)
    EXPECT_EQ(values_of<float>(sparse->read(std::vector<uint64_t>{key}).view()), dense[key]) << key;
  const auto copy = make_storage({&job, 0, 0});
  copy->load(sparse->image());
  EXPECT_EQ(copy->image().parts, sparse->image().parts);
  EXPECT_EQ(copy->image().sparse.keys, sparse->image().sparse.keys);
}

TEST(Rule, LatestIsWhatIsPushedWhateverTheDivisor) {
  std::vector<double> values{1, 2}, pushed{5, -7};
  make_latest()->apply(Row<double>{values, {}}, pushed, {.rate = 0.5, .divisor = 3});
  EXPECT_EQ(values, (std::vector<double>{5, -7}));
}

TEST(StoredValues, AreExactWhereTheTypeHasThem) {
  const std::vector<double> numbers{0, 1, 200, -128, 0.5, 1e300, 4503599627370497, NAN};
  const auto as = [&]<class T>(const char* dtype, T) {
    return values_of<T>(to_stored(bytes_of_values<double>(numbers), dtype));
  };
  EXPECT_EQ(as("I64", int64_t{}),
            (std::vector<int64_t>{0, 1, 200, -128, 0, INT64_MAX, 4503599627370497, INT64_MIN}));
  EXPECT_EQ(as("I8", int8_t{}), (std::vector<int8_t>{0, 1, 127, -128, 0, 127, 127, -128}));
  EXPECT_EQ(as("BOOL", uint8_t{}), (std::vector<uint8_t>{0, 1, 200, 0, 0, 255, 255, 0}));
  EXPECT_EQ(as("F32", float{})[4], 0.5F);
  for (const char* dtype : {"F64", "F32", "I64", "I32", "I16", "I8", "U8", "BOOL"}) {
    EXPECT_TRUE(can_store(dtype));
    const std::string some = bytes_of_values<double>(std::vector<double>{0, 1, 1, 0});
    EXPECT_EQ(from_stored(to_stored(some, dtype), dtype), some) << dtype;
  }
  EXPECT_FALSE(can_store("F16"));
  EXPECT_THROW(to_stored("", "F16"), MisuseError);
}

TEST(SparseTable, EqualsTheSameEmbeddingTrainedDensely) {
  expect_sparse_is_dense(make_sgd({.lr = 0.1}));
  expect_sparse_is_dense(make_adagrad({.lr = 0.1}));
}

TEST(SparseTable, ARowIsBornFromTheSeedWhereverItIsRead) {
  const JobConfig job = job_of({.name = "rows",
                                .kind = TableKind::Sparse,
                                .elems = 4,
                                .rule = make_sgd({}),
                                .init_scale = 2});
  const auto one = make_storage({&job, 0, 0}), other = make_storage({&job, 0, 0});
  const std::vector<uint64_t> keys{7, uint64_t{1} << 63};
  const Payload first = one->read(keys);
  EXPECT_EQ(one->rows(), 0);
  push(*one, keys, std::string(2 * 4 * sizeof(float), '\0'));
  EXPECT_EQ(one->rows(), 2);
  EXPECT_EQ(one->read(keys), first);
  EXPECT_EQ(other->read(keys), first);
  std::set<float> different;
  for (const float value : values_of<float>(first.view())) {
    EXPECT_LE(std::abs(value), 2);
    different.insert(value);
  }
  EXPECT_EQ(different.size(), 8);
}

TEST(SparseTable, EvictsTheRowLongestUntouched) {
  const JobConfig job = job_of({.name = "rows",
                                .kind = TableKind::Sparse,
                                .elems = 1,
                                .rule = make_sgd({.lr = -1}),
                                .most_rows = 2});
  const auto rows = make_storage({&job, 0, 0});
  for (const uint64_t key : {1, 2, 1, 3})
    push(*rows, {key}, bytes_of_values<float>(std::vector<float>{1}));  // 3 takes the place of 2
  EXPECT_EQ(rows->rows(), 2);
  EXPECT_EQ(values_of<float>(rows->read(std::vector<uint64_t>{1, 2, 3}).view()),
            (std::vector<float>{2, 0, 1}));
}

/// A snapshot holds slabs longer than the table may live.
TEST(SlabPool, UsesSlabsAgainAndOutlivesItself) {
  constexpr size_t kBytes = 64 << 10, kSlabs = 2 * kLargePage / kBytes + 1;
  std::vector<std::shared_ptr<void>> slabs;
  {
    SlabPool pool(kBytes);
    std::set<void*> places;
    for (size_t i = 0; i < kSlabs; ++i) {
      slabs.push_back(pool.take(kBytes));
      std::memset(slabs.back().get(), static_cast<int>(i), kBytes);
      places.insert(slabs.back().get());
    }
    EXPECT_EQ(places.size(), kSlabs);
    void* const given_back = slabs[7].get();
    slabs[7].reset();
    slabs[7] = pool.take(kBytes);
    EXPECT_EQ(slabs[7].get(), given_back);
    std::memset(slabs[7].get(), 7, kBytes);
    EXPECT_THROW(pool.take(kBytes + 1), MisuseError);
  }
  for (size_t i = 0; i < kSlabs; ++i) {
    const auto* bytes = static_cast<const unsigned char*>(slabs[i].get());
    EXPECT_EQ(bytes[0], i % 256);
    EXPECT_EQ(bytes[kBytes - 1], i % 256);
  }
}

TEST(SparseTable, TakesLittleMoreThanItsRows) {
  const JobConfig job =
      job_of({.name = "rows", .kind = TableKind::Sparse, .elems = 64, .rule = make_sgd({})});
  const auto rows = make_storage({&job, 0, 0});
  constexpr size_t kRows = 20'000;
  std::vector<uint64_t> keys(kRows);
  for (size_t i = 0; i < kRows; ++i) keys[i] = i * i;
  push(*rows, keys, std::string(kRows * 64 * sizeof(float), '\0'));
  EXPECT_LE(static_cast<double>(rows->bytes()), 1.3 * kRows * 64 * sizeof(float));
}

TEST(JobConfig, RefusesWhatCannotBeWithTheNumbers) {
  JobConfig job = job_of({.name = "w", .elems = 8, .tau = -1, .rule = make_sgd({})});
  const auto sentence = [&] {
    try {
      check(job);
    } catch (const MisuseError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(sentence(), "table 'w': tau is -1; use 0 for lockstep or more for stale");
  job.tables[0].tau = 0;
  EXPECT_EQ(sentence(), "accepted");
  job.copies = 1;
  EXPECT_EQ(sentence(),
            "job 'job': 1 copies need 2 servers, but there are 1; use at most 0 copies");
}

}  // namespace
}  // namespace trireme::ps
