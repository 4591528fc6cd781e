// A user's program of one page, for tests that start it in every role and kill some of them: counts
// in a sparse table, and a dense one with an element for every batch.
//
//   ps_join BATCHES
//
//   TRIREME_PS_COPIES=1   servers hold a copy of each other's ranges
//   PS_BACKUP_MS=200      idle workers repeat a task that takes others longer; workers run free
//   PS_GATE=FILE          this worker waits in its first batch until there is such a file
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>

#include "trireme/ps/join.h"

using namespace trireme;

namespace {

constexpr uint64_t kKeys = 7;

/// As if the first batch took so long.
void wait_at_gate(ps::Batch batch) {
  static const char* gate = std::getenv("PS_GATE");
  if (gate == nullptr) return;
  fmt::print("waits with batch {}\n", batch), std::fflush(stdout);
  while (!std::filesystem::exists(gate)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  gate = nullptr;
}

int work(ps::Worker& worker) {
  const ps::Table counts = worker.table("counts"), done = worker.table("done");
  std::vector<double> seen(worker.job().batches()), count(kKeys);
  std::optional<ps::Batch> last;  // of this life
  uint64_t life = 0;
  int pushed = 0, repeated = 0;
  const bool has_backups = std::getenv("PS_BACKUP_MS") != nullptr;
  const ps::TrainingStep& end = worker.train([&](ps::TrainingStep& step) {
    if (!last && life == 0) fmt::print("begins\n"), std::fflush(stdout);
    if (std::exchange(life, worker.client().lives_lost() + 1) != life) last.reset();
    done.pull(step, seen).wait();
    // Nobody has waited for the push of the step before: it must be there all the same, and once,
    // also if another worker had done that batch already.
    if (last && seen[*last] != 1) fmt::print("missed an own write\n");
    last = step.batch();
    wait_at_gate(step.batch());
    const uint64_t key = step.batch() % kKeys;
    step.divisor = 1;  // sums, not means
    counts.push(step, std::vector<uint64_t>{key, 100 + key, key}, std::vector<double>{0.5, 3, 0.5});
    std::vector<double> one(seen.size());
    one[step.batch()] = 1;
    auto push = done.push(step, one);
    ++pushed;
    if (has_backups) repeated += push.wait().repeated > 0 ? 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // as if it computed
  });
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < kKeys; ++key) keys.push_back(key);
  counts.pull(end, keys, count).wait();
  done.pull(end, seen).wait();
  for (const double one : count) fmt::print("count {}\n", one);
  fmt::print("sum {}\n", std::accumulate(seen.begin(), seen.end(), 0.0));
  if (std::ranges::all_of(seen, [](double times) { return times == 1; }))
    fmt::print("all {} once\n", seen.size());
  fmt::print("pushed {}, repeated {}\n", pushed, repeated);
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
  const char* backup_ms = std::getenv("PS_BACKUP_MS");
  if (backup_ms) job.timing.backup_after = std::chrono::milliseconds(std::atoi(backup_ms));
  const ps::RulePtr add = ps::make_sgd({.lr = -1});
  job.tables = {{.name = "counts",
                 .kind = ps::TableKind::Sparse,
                 .type = ps::ValueType::Float64,
                 .elems = 1,
                 .consistency = ps::Consistency::Free,
                 .rule = add},
                {.name = "done",
                 .type = ps::ValueType::Float64,
                 .elems = job.batches(),
                 .consistency = backup_ms ? ps::Consistency::Free : ps::Consistency::Stale,
                 .tau = 3,
                 .rule = add}};
  if (std::getenv("TRIREME_PS_COPIES")) job.copies = 1;
  const auto worker = ps::join(job);
  return worker ? work(*worker) : 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
