// The staleness bound on real threads and sockets: three workers, one of them slow, write down what
// they wrote and saw, and a checker proves the bound for every read.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/ps/staleness.h"
#include "trireme/ps/client.h"
#include "trireme/ps/one_process_job.h"
#include "trireme/ps/values.h"

namespace trireme::test {
namespace {

constexpr uint32_t kWorkers = 3, kRanges = 4;
constexpr uint64_t kBatches = 3 * 400;

StaleLog two_clocks() {
  return {.writes = {0, 1}, .reads = {}};
}

std::vector<std::string> breaches_of(int64_t tau, std::vector<StaleRead> reads) {
  std::vector<StaleLog> logs{two_clocks(), two_clocks()};
  logs[0].reads = std::move(reads);
  return check_staleness(logs, tau).breaches;
}

TEST(StalenessChecker, FindsEachKindOfWrongRead) {
  EXPECT_EQ(breaches_of(1, {{0, 1, {{1, 0}}}, {0, 2, {{2, 1}}}}).size(), 0);
  EXPECT_EQ(breaches_of(1, {{0, 2, {{2, 0}}}}).size(), 1) << "too old";
  EXPECT_EQ(breaches_of(2, {{0, 2, {{2, 0}}}}).size(), 0) << "old enough for this tau";
  EXPECT_EQ(breaches_of(5, {{0, 2, {{1, 2}}}}).size(), 1) << "without its own";
  EXPECT_EQ(breaches_of(5, {{0, 1, {{1, 2}}}, {0, 2, {{2, 1}}}}).size(), 1) << "goes back";
  EXPECT_EQ(breaches_of(5, {{0, 1, {{1, 3}}}}).size(), 1) << "invented";
  EXPECT_EQ(breaches_of(0, {{0, 1, {{1, 2}}}}).size(), 1) << "lockstep shows no later clock";
  EXPECT_EQ(breaches_of(1, {{0, 1, {{1, 0}, {1, 0}}}, {0, 2, {{2, 1}, {2, 0}}}}).size(), 1)
      << "in one range only";
}

ps::JobConfig stale_job(int64_t tau) {
  ps::JobConfig job{.name = "stale", .servers = 2, .workers = kWorkers};
  job.copies = 1;
  job.ranges = kRanges;
  job.lanes = 2;  // two threads of each server
  job.data = {.epochs = 1, .batches_per_epoch = kBatches, .steps_per_task = 20};
  // Lockstep divides by the weights that came.
  job.tables = {{.name = "seen",
                 .type = ps::ValueType::Float64,
                 .elems = kRanges * kWorkers,
                 .consistency = ps::Consistency::Stale,
                 .tau = tau,
                 .rule = ps::make_sgd({.lr = tau == 0 ? -static_cast<double>(kWorkers) : -1.0})}};
  return job;
}

/// Worker 0 takes a while for each step.
StaleLog work(const ps::OneProcessJob& servers, const ps::JobConfig& job, uint32_t worker) {
  ps::Client client(servers.options(), job, worker);
  std::vector<double> ones(kRanges * kWorkers);
  for (size_t range = 0; range < kRanges; ++range) ones[range * kWorkers + worker] = 1;
  StaleLog log;
  while (const auto work = client.next()) {
    for (size_t step = 0; step < work->batches.size(); ++step) {
      const ps::Clock clock = work->clock + step;
      const auto values = ps::values_of<double>(
          client
              .wait(
                  client.start({.clock = clock, .view_version = work->view_version, .pull = true}))
              .values());
      StaleRead read{.worker = worker, .clock = clock};
      for (size_t range = 0; range < kRanges; ++range)
        read.seen.emplace_back(
            values.begin() + static_cast<std::ptrdiff_t>(range * kWorkers),
            values.begin() + static_cast<std::ptrdiff_t>((range + 1) * kWorkers));
      log.reads.push_back(std::move(read));
      if (worker == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ps::Client::Operation push{.clock = clock, .view_version = work->view_version, .push = true};
      push.batch = work->batches[step];
      push.values = ps::bytes_of_values<double>(ones);
      (void)client.wait(client.start(std::move(push)));
      log.writes.push_back(clock);
    }
    client.done(*work);
  }
  return log;
}

std::vector<StaleLog> run(const ps::JobConfig& job) {
  const ps::OneProcessJob servers(job);
  std::vector<StaleLog> logs(kWorkers);
  {
    std::vector<std::jthread> threads;
    for (uint32_t worker = 0; worker < kWorkers; ++worker)
      threads.emplace_back([&, worker] { logs[worker] = work(servers, job, worker); });
  }
  return logs;
}

class Staleness : public testing::TestWithParam<int64_t> {};

TEST_P(Staleness, IsBoundedForEveryRead) {
  const ps::JobConfig job = stale_job(GetParam());
  const auto logs = run(job);
  const StaleFindings findings = check_staleness(logs, GetParam());
  for (size_t i = 0; i < std::min<size_t>(5, findings.breaches.size()); ++i)
    ADD_FAILURE() << findings.breaches[i];
  size_t writes = 0;
  for (const StaleLog& log : logs) writes += log.writes.size();
  EXPECT_EQ(writes, kBatches) << "every batch once";
  EXPECT_EQ(findings.reads, kBatches);
  EXPECT_LE(findings.behind, static_cast<size_t>(GetParam()));
  fmt::print("tau {}: {} reads, the stalest missed {} clocks of a slow worker\n", GetParam(),
             findings.reads, findings.behind);
}

INSTANTIATE_TEST_SUITE_P(Tau, Staleness, testing::Values(0, 2, 5));

/// Servers that let a pull wait for one clock less than they should are caught.
TEST(StalenessChecker, CatchesServersThatAreTooGenerous) {
  ps::JobConfig job = stale_job(1);
  job.data.batches_per_epoch = kBatches / 4;
  job.plant = ps::Plant::LooseBound;
  EXPECT_FALSE(check_staleness(run(job), 1).breaches.empty());
}

}  // namespace
}  // namespace trireme::test
