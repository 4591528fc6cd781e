// The staleness bound on real threads and sockets: three workers, one of them slow, write down what
// they wrote and saw, and a checker proves the bound for every read.
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "tests/ps/joined_processes.h"
#include "tests/ps/stale_work.h"
#include "trireme/ps/one_process_job.h"

namespace trireme::test {
namespace {

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

std::vector<StaleLog> run(const ps::JobConfig& job) {
  const ps::OneProcessJob servers(job);
  std::vector<StaleLog> logs(kStaleWorkers);
  {
    std::vector<std::jthread> threads;
    for (uint32_t worker = 0; worker < kStaleWorkers; ++worker)
      threads.emplace_back([&, worker] {
        ps::Client client(servers.options(), job, worker);
        logs[worker] = stale_work(client, worker);
      });
  }
  return logs;
}

/// Whatever happened, and however the checker was told.
void expect_bound(const std::vector<StaleLog>& logs, int64_t tau) {
  const StaleFindings findings = check_staleness(logs, tau);
  for (size_t i = 0; i < std::min<size_t>(5, findings.breaches.size()); ++i)
    ADD_FAILURE() << findings.breaches[i];
  size_t writes = 0;
  for (const StaleLog& log : logs) writes += log.writes.size();
  EXPECT_EQ(writes, kStaleBatches) << "every batch once";
  EXPECT_EQ(findings.reads, kStaleBatches);
  EXPECT_LE(findings.behind, static_cast<size_t>(tau));
  fmt::print("tau {}: {} reads, the stalest missed {} clocks of a slow worker\n", tau,
             findings.reads, findings.behind);
}

class Staleness : public testing::TestWithParam<int64_t> {};

TEST_P(Staleness, IsBoundedForEveryRead) {
  expect_bound(run(stale_job(GetParam())), GetParam());
}

/// What a worker's process has printed.
StaleLog log_of(uint32_t worker, const std::string& out) {
  StaleLog log;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what;
    ps::Clock clock = 0;
    words >> what >> clock;
    if (what == "write") log.writes.push_back(clock);
    if (what != "read") continue;
    std::vector<double> values;
    for (double value = 0; words >> value;) values.push_back(value);
    EXPECT_EQ(values.size(), kStaleRanges * kStaleWorkers) << line;
    log.reads.push_back(stale_read(worker, clock, values));
  }
  return log;
}

/// The same with processes. One worker is slow in each step, another is stopped for a while.
TEST_P(Staleness, IsBoundedForEveryReadOfProcesses) {
  const Scratch folder;
  JoinedProcesses job(folder, {.program = {kBin + "ps_stale", std::to_string(GetParam())},
                               .workers = kStaleWorkers,
                               .name = "stale"});
  job.start_workers();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  job.node("worker 1").signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  job.node("worker 1").signal(SIGCONT);
  std::vector<StaleLog> logs;
  for (uint32_t worker = 0; worker < kStaleWorkers; ++worker) {
    const CommandResult done = job.node(fmt::format("worker {}", worker)).finish();
    EXPECT_EQ(done.code, 0) << done.err;
    logs.push_back(log_of(worker, done.out));
  }
  expect_bound(logs, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tau, Staleness, testing::Values(0, 2, 5));

/// Servers that let a pull wait for one clock less than they should are caught.
TEST(StalenessChecker, CatchesServersThatAreTooGenerous) {
  ps::JobConfig job = stale_job(1);
  job.data.batches_per_epoch = kStaleBatches / 4;
  job.plant = ps::Plant::LooseBound;
  EXPECT_FALSE(check_staleness(run(job), 1).breaches.empty());
}

}  // namespace
}  // namespace trireme::test
