// One range without its chain: what its entries make of it.
#include <gtest/gtest.h>

#include "trireme/core/error.h"
#include "trireme/ps/range_state.h"
#include "trireme/ps/rounds.h"
#include "trireme/ps/values.h"

namespace trireme::ps {
namespace {

JobConfig one_table(TableConfig table, uint32_t workers) {
  JobConfig job;
  job.seed = 3;
  job.workers = workers;
  job.ranges = 1;
  job.data.batches_per_epoch = 60;
  table.name = "w";
  job.tables = {std::move(table)};
  return job;
}

template <class T>
Request push_of(uint32_t worker, Clock clock, Batch batch, std::vector<T> values) {
  return {.id = {.worker = worker, .life = 1, .clock = clock},
          .push = true,
          .batch = batch,
          .values = bytes_of_values<T>(values)};
}

void begin(RangeState& range, std::vector<ActiveWorker> workers) {
  range.apply({.kind = EntryKind::Workers, .workers_version = 1, .workers = std::move(workers)});
}

TEST(RangeState, OneWorkerOnFreeIsOneProcessToTheBit) {
  const RulePtr rule = make_adamw({.lr = 0.01});
  const JobConfig job =
      one_table({.elems = 3, .consistency = Consistency::Free, .rule = rule, .init_scale = 1}, 1);
  RangeState range({&job, 0, 0});
  begin(range, {{0, 1, 0}});
  std::vector<float> weights = values_of<float>(range.read({}).view()),
                     state(rule->state().elems(3));
  for (Clock clock = 0; clock < 50; ++clock) {
    std::vector<float> sum(3), mean(3);
    for (size_t i = 0; i < 3; ++i) {
      sum[i] = weights[i] * 0.3F + static_cast<float>((clock * 7 + i * 5) % 11) - 5;
      mean[i] = sum[i] / 3;
    }
    Request push = push_of(0, clock, clock, sum);
    push.divisor = 3;
    ASSERT_EQ(range.judge(push).verdict, RangeState::Verdict::Apply);
    range.apply({.kind = EntryKind::Push, .request = push});
    rule->apply(Row<float>{weights, state}, mean, {});
  }
  EXPECT_EQ(values_of<float>(range.read({}).view()), weights);
}

TEST(RangeState, AStaleReadWaitsForTheSlowestByTau) {
  const JobConfig job =
      one_table({.elems = 1, .consistency = Consistency::Stale, .tau = 2, .rule = make_sgd({})}, 2);
  RangeState range({&job, 0, 0});
  begin(range, {{0, 1, 0}, {1, 1, 0}});
  EXPECT_TRUE(range.can_read(2));  // updates of clocks <= -1
  EXPECT_FALSE(range.can_read(3));
  range.apply({.kind = EntryKind::Push, .request = push_of<float>(0, 0, 0, {1})});
  EXPECT_FALSE(range.can_read(3));
  range.apply({.kind = EntryKind::Push, .request = push_of<float>(1, 0, 1, {1})});
  EXPECT_TRUE(range.can_read(3));
  EXPECT_FALSE(range.can_read(4));
  // Worker 1 is gone: nobody waits for it any more.
  range.apply({.kind = EntryKind::Workers, .workers_version = 2, .workers = {{0, 1, 0}}});
  EXPECT_TRUE(range.can_read(3));
  EXPECT_FALSE(range.can_read(4));
}

/// A push that was lost on its way comes after a pull that was sent later.
TEST(RangeState, AReadWaitsForTheReadersOwnPushes) {
  for (const auto consistency : {Consistency::Stale, Consistency::Free}) {
    const JobConfig job = one_table({.elems = 1,
                                     .consistency = consistency,
                                     .tau = consistency == Consistency::Stale ? 5 : 0,
                                     .rule = make_sgd({})},
                                    2);
    RangeState range({&job, 0, 0});
    begin(range, {{0, 1, 0}, {1, 1, 0}});
    const RequestId mine{.worker = 0, .life = 1}, without_work{.worker = 1, .life = 2};
    EXPECT_TRUE(range.has_own_writes(mine, 0));
    EXPECT_FALSE(range.has_own_writes(mine, 1));
    EXPECT_TRUE(range.has_own_writes(without_work, 1));
    EXPECT_TRUE(range.can_read(1)) << "the others need not have pushed";
    range.apply({.kind = EntryKind::Push, .request = push_of<float>(0, 0, 0, {1})});
    EXPECT_TRUE(range.has_own_writes(mine, 1));
    EXPECT_FALSE(range.has_own_writes(mine, 2));
  }
}

TEST(RangeState, CountsWhatAPushHasMissedAndCanSlowItDown) {
  const JobConfig job = one_table({.type = ValueType::Float64,
                                   .elems = 1,
                                   .consistency = Consistency::Free,
                                   .rule = make_sgd({.lr = 1}),
                                   .staleness_aware = true},
                                  2);
  RangeState range({&job, 0, 0});
  begin(range, {{0, 1, 0}, {1, 1, 0}});
  for (Clock clock = 0; clock < 3; ++clock) {
    Request push = push_of<double>(0, clock, clock, {1});
    push.read_version = clock;
    EXPECT_EQ(range.missed(push), 0);
    range.apply({.kind = EntryKind::Push, .request = push});
  }
  const Request late = push_of<double>(1, 0, 3, {1});
  EXPECT_EQ(range.missed(late), 3);
  range.apply({.kind = EntryKind::Push, .request = late});
  EXPECT_DOUBLE_EQ(values_of<double>(range.read({}).view())[0], -3 - 0.25);
}

TEST(RangeState, LockstepDividesByTheWeightsThatCame) {
  const JobConfig job =
      one_table({.type = ValueType::Float64, .elems = 1, .rule = make_sgd({.lr = 1})}, 2);
  RangeState range({&job, 0, 0});
  begin(range, {{0, 1, 0}, {1, 1, 0}});
  Request first = push_of<double>(0, 0, 0, {3}), second = push_of<double>(1, 0, 1, {5});
  first.weight = 1;
  second.weight = 3;
  range.apply({.kind = EntryKind::Push, .request = second});
  range.apply({.kind = EntryKind::Round, .clock = 0});  // not whole yet: nothing happens
  EXPECT_FALSE(range.can_read(1));
  range.apply({.kind = EntryKind::Push, .request = first});
  EXPECT_TRUE(range.is_whole());
  EXPECT_DOUBLE_EQ(values_of<double>(range.read({}).view())[0], 0)
      << "shown only when it is applied";
  range.apply({.kind = EntryKind::Round, .clock = 0});
  EXPECT_DOUBLE_EQ(values_of<double>(range.read({}).view())[0], -2);
  EXPECT_TRUE(range.can_read(1));
}

TEST(RangeState, ComesBackFromItsBytesWithEverythingThatIsPending) {
  const JobConfig job =
      one_table({.type = ValueType::Float64, .elems = 2, .rule = make_sgd({.momentum = 0.9})}, 2);
  RangeState range({&job, 0, 0}), copy({&job, 0, 0});
  begin(range, {{0, 1, 0}, {1, 1, 0}});
  range.apply({.kind = EntryKind::Push, .request = push_of<double>(0, 0, 0, {1, 2})});
  const auto bytes_of = [](const RangeState& state) { return state.image().frame().flat(); };
  const std::string bytes = bytes_of(range);
  copy.load(RangeState::Image::parse(bytes));
  EXPECT_EQ(bytes_of(copy), bytes);
  for (RangeState* state : {&range, &copy}) {
    state->apply({.kind = EntryKind::Push, .request = push_of<double>(1, 0, 1, {3, 4})});
    state->apply({.kind = EntryKind::Round, .clock = 0});
  }
  EXPECT_EQ(bytes_of(copy), bytes_of(range));
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_THROW(copy.load(RangeState::Image::parse(bytes.substr(0, cut))), CommError);
}

/// Worker 0 has not come back yet after a return to a snapshot; its batches must not count as
/// saved.
TEST(RangeState, ASnapshotInLanesWaitsForAllLanes) {
  JobConfig job =
      one_table({.elems = 1, .consistency = Consistency::Stale, .tau = 1, .rule = make_sgd({})}, 2);
  job.tables.push_back({.name = "lockstep", .elems = 1, .rule = make_sgd({})});
  RangeState range({&job, 0, 0});
  begin(range, {{1, 1, 0}});
  range.apply({.kind = EntryKind::Snapshot, .snapshot = {1, 1}});
  range.apply({.kind = EntryKind::Push, .request = push_of<float>(1, 0, 1, {1})});
  EXPECT_FALSE(range.snapshot_due());
  begin(range, {{0, 1, 0}, {1, 1, 0}});
  EXPECT_FALSE(range.snapshot_due());
  range.apply({.kind = EntryKind::Push, .request = push_of<float>(0, 0, 0, {1})});
  EXPECT_EQ(range.snapshot_due(), 1);
}

/// A new coordinator hears of clock 1 first, and one range still waits for clock 0.
TEST(Rounds, AsksAboutTheClockThatOneRangeIsBehind) {
  JobConfig job = one_table({.elems = 2, .rule = make_sgd({})}, 1);
  job.ranges = 2;
  Rounds rounds(job);
  rounds.add({.table = 0, .range = 0, .clock = 1, .squares = 4});
  rounds.add({.table = 0, .range = 1, .clock = 0, .squares = 9});
  const std::vector<RoundAsk> asks = rounds.missing();
  ASSERT_EQ(asks.size(), 2);
  EXPECT_EQ(asks[0].range, 0);
  EXPECT_EQ(asks[0].clock, 0);
  rounds.add({.table = 0, .range = 0, .clock = 0, .squares = 16});
  EXPECT_TRUE(rounds.is_whole(0));
  EXPECT_DOUBLE_EQ(rounds.squares(0), 25);
  EXPECT_FALSE(rounds.is_whole(1));
}

}  // namespace
}  // namespace trireme::ps
