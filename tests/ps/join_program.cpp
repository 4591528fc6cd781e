// A user's program of one page, for tests that start it in every role and kill some of them: counts
// in a sparse table, and a dense one that every worker reads as it wrote it.
//
//   ps_join BATCHES
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "trireme/ps/join.h"

using namespace trireme;

namespace {

constexpr uint64_t kKeys = 7, kElems = 30;

int work(ps::Worker& worker) {
  const ps::Table counts = worker.table("counts"), sums = worker.table("sums");
  std::vector<double> sum(kElems), count(kKeys);
  ps::Clock own = 0;
  const ps::TrainingStep& end = worker.train([&](ps::TrainingStep& step) {
    if (own == 0) fmt::print("begins\n"), std::fflush(stdout);
    sums.pull(step, sum).wait();
    const uint64_t key = step.batch() % kKeys;
    step.divisor = 1;  // sums, not means
    counts.push(step, std::vector<uint64_t>{key, 100 + key, key}, std::vector<double>{0.5, 3, 0.5});
    sums.push(step, std::vector<double>(kElems, 1));
    // Nobody waits for these pushes: the next pull must have them all the same.
    const uint64_t lives = worker.client().lives_lost();
    static double before = 0;
    static uint64_t life = 0;
    const bool is_first = std::exchange(life, lives + 1) != lives + 1;
    if (!is_first && sum[0] < before + 1) fmt::print("missed an own write\n");
    before = sum[0];
    ++own;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // as if it computed
  });
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < kKeys; ++key) keys.push_back(key);
  counts.pull(end, keys, count).wait();
  sums.pull(end, sum).wait();
  for (const double one : count) fmt::print("count {}\n", one);
  fmt::print("sum {}\n", sum[kElems - 1]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  ps::JobConfig job{.seed = 1, .servers = 2, .ranges = 8};
  job.data.batches_per_epoch = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100;
  job.data.steps_per_task = 5;
  job.timing.heartbeat = std::chrono::milliseconds(100);
  job.timing.dead_after = std::chrono::milliseconds(1500);
  job.timing.retry = std::chrono::milliseconds(100);
  const ps::RulePtr add = ps::make_sgd({.lr = -1});
  job.tables = {{.name = "counts",
                 .kind = ps::TableKind::Sparse,
                 .type = ps::ValueType::Float64,
                 .elems = 1,
                 .consistency = ps::Consistency::Free,
                 .rule = add},
                {.name = "sums",
                 .type = ps::ValueType::Float64,
                 .elems = kElems,
                 .consistency = ps::Consistency::Stale,
                 .tau = 3,
                 .rule = add}};
  if (std::getenv("TRIREME_PS_COPIES")) job.copies = 1;
  const auto worker = ps::join(job);
  return worker ? work(*worker) : 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
