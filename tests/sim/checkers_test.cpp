// The checkers themselves, on histories that are right and on histories that are wrong.
#include <gtest/gtest.h>

#include "sim/checks.h"
#include "sim/linear.h"

namespace trireme::sim {
namespace {

CounterOp add(int begin, int end) {
  return {.begin = Time(begin), .end = Time(end)};
}
CounterOp lost_add(int begin) {
  return {.begin = Time(begin)};
}
CounterOp read(int begin, int end, double value) {
  return {.begin = Time(begin), .end = Time(end), .is_read = true, .value = value};
}

TEST(Linearizable, AcceptsWhatOneOrderExplains) {
  EXPECT_TRUE(is_linearizable({}));
  EXPECT_TRUE(is_linearizable({add(0, 1), read(2, 3, 1)}));
  EXPECT_TRUE(is_linearizable({add(0, 10), read(2, 3, 0), read(4, 5, 1)}));
  EXPECT_TRUE(is_linearizable({add(0, 10), add(1, 9), read(2, 3, 2), read(4, 12, 2)}));
  EXPECT_TRUE(is_linearizable({lost_add(0), read(2, 3, 0), read(4, 5, 1)}));
  EXPECT_TRUE(is_linearizable({lost_add(0), read(2, 3, 0)}));
}

TEST(Linearizable, RefusesALostAStaleAndAnInventedValue) {
  EXPECT_FALSE(is_linearizable({add(0, 1), read(2, 3, 0)}));                   // lost
  EXPECT_FALSE(is_linearizable({add(0, 10), read(2, 3, 1), read(4, 5, 0)}));   // goes back
  EXPECT_FALSE(is_linearizable({lost_add(0), read(2, 3, 1), read(4, 5, 0)}));  // is undone
  EXPECT_FALSE(is_linearizable({add(0, 1), read(2, 3, 2)}));                   // applied twice
  EXPECT_FALSE(is_linearizable({read(2, 3, 1), add(4, 5)}));                   // from the future
}

/// Two workers, one range, four batches; worker 0 does even ones, worker 1 odd ones.
ps::JobConfig small_job(ps::Consistency consistency, int64_t tau) {
  ps::JobConfig job;
  job.workers = 2;
  job.ranges = 1;
  job.data.batches_per_epoch = 4;
  job.tables.resize(2);
  job.tables[kLedger].consistency = consistency;
  job.tables[kLedger].tau = tau;
  return job;
}

Read read_at(uint32_t worker, ps::Clock clock, int time, std::vector<double> ledger) {
  return {.worker = worker,
          .life = 1,
          .clock = clock,
          .begin = Time(time),
          .end = Time(time + 1),
          .ledger = {std::move(ledger)}};
}

Write write_at(uint32_t worker, ps::Clock clock, ps::Batch batch, int time) {
  return {.worker = worker,
          .life = 1,
          .clock = clock,
          .batch = batch,
          .begin = Time(time),
          .end = Time(time + 1)};
}

std::vector<Promise> promises(const Breaches& found) {
  std::vector<Promise> broken;
  for (const Breach& breach : found) broken.push_back(breach.promise);
  return broken;
}

TEST(BoundChecker, CountsClocksAndNotTime) {
  const ps::JobConfig job = small_job(ps::Consistency::Stale, 1);
  History history;
  history.writes = {write_at(1, 0, 1, 10), write_at(1, 1, 3, 100)};
  history.reads = {read_at(0, 1, 0, {0, 0, 0, 0}), read_at(0, 2, 20, {0, 1, 0, 0})};
  Breaches found;
  check_bound(job, history, found);
  EXPECT_TRUE(found.empty());
  // At clock 2 it must have seen clock 0, at clock 3 also clock 1, though that came later in time.
  history.reads = {read_at(0, 2, 0, {0, 0, 0, 0}), read_at(0, 3, 30, {0, 1, 0, 0})};
  check_bound(job, history, found);
  EXPECT_EQ(promises(found), (std::vector{Promise::Bound, Promise::Bound}));
}

TEST(ReadChecker, FindsEachKindOfBadRead) {
  const ps::JobConfig job = small_job(ps::Consistency::Free, 0);
  const auto broken_by = [&](std::vector<Read> reads) {
    History history;
    history.writes = {write_at(0, 0, 0, 0), write_at(1, 0, 1, 0)};
    history.reads = std::move(reads);
    Breaches found;
    check_reads(job, history, found);
    return promises(found);
  };
  EXPECT_EQ(broken_by({read_at(0, 1, 5, {1, 1, 0, 0})}), std::vector<Promise>{});
  EXPECT_EQ(broken_by({read_at(0, 1, 5, {1, 0, 0, 0})}), std::vector{Promise::Kept});
  EXPECT_EQ(broken_by({read_at(0, 1, 5, {0, 1, 0, 0})}), std::vector{Promise::OwnWrites});
  EXPECT_EQ(broken_by({read_at(0, 1, 5, {1, 2, 0, 0})}), std::vector{Promise::Once});
  EXPECT_EQ(broken_by({read_at(0, 1, 5, {1, 1, 1, 0}), read_at(0, 2, 7, {1, 1, 0, 0})}),
            std::vector{Promise::Monotonic});
}

TEST(WholeClockChecker, FindsHalfAClock) {
  const ps::JobConfig job = small_job(ps::Consistency::Lockstep, 0);
  History history;
  history.reads = {read_at(0, 1, 5, {1, 1, 0, 0})};
  Breaches found;
  check_whole_clocks(job, history, found);
  EXPECT_TRUE(found.empty());
  history.reads = {read_at(0, 1, 5, {1, 1, 1, 0})};
  check_whole_clocks(job, history, found);
  EXPECT_EQ(promises(found), std::vector{Promise::Exact});
}

}  // namespace
}  // namespace trireme::sim
