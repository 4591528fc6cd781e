// The parameter server under a virtual clock and network.
//   ps_test --seed 17                                      replays one seed and says what happens
//   in it PS_FIRST=1 PS_SEEDS=100000 ps_test --gtest_filter=*Keeps*   as many as you like
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/scenario.h"

namespace trireme::sim {
namespace {

void report(const Scenario& scenario, const Outcome& outcome) {
  for (size_t i = 0; i < outcome.breaches.size() && i < 5; ++i)
    ADD_FAILURE() << describe(scenario) << "\n  " << name_of(outcome.breaches[i].promise) << ": "
                  << outcome.breaches[i].sentence
                  << fmt::format("\n  replay: ps_test --seed {}", scenario.seed);
}

void add(Outcome& sum, const Outcome& one) {
  for (const auto field :
       {&Outcome::events, &Outcome::crashes, &Outcome::rollbacks, &Outcome::restored,
        &Outcome::epochs, &Outcome::writes, &Outcome::reads, &Outcome::repeated, &Outcome::refused,
        &Outcome::snapshots, &Outcome::partitions, &Outcome::falls, &Outcome::joins,
        &Outcome::departures})
    sum.*field += one.*field;
  for (const auto field : {&Happenings::lost, &Happenings::repeated, &Happenings::late,
                           &Happenings::cut, &Happenings::power_losses})
    sum.happened.*field += one.happened.*field;
}

/// Worlds in which nothing goes wrong prove nothing.
void expect_misfortunes(const Outcome& sum) {
  const std::pair<const char*, uint64_t> all[] = {
      {"messages lost", sum.happened.lost},
      {"messages that came twice", sum.happened.repeated},
      {"messages that came late, after others", sum.happened.late},
      {"messages into a partition", sum.happened.cut},
      {"managers that died while they wrote", sum.happened.power_losses},
      {"crashes", sum.crashes},
      {"partitions", sum.partitions},
      {"heads cut off from their successors", sum.falls},
      {"servers that came", sum.joins},
      {"servers that left", sum.departures},
      {"ranges that changed hands", sum.epochs},
      {"snapshots", sum.snapshots},
      {"returns to the beginning", sum.rollbacks - sum.restored},
      {"returns to a snapshot", sum.restored},
      {"batches that were done twice", sum.repeated},
      {"messages refused", sum.refused},
      {"pushes", sum.writes},
      {"pulls", sum.reads}};
  for (const auto& [what, times] : all) EXPECT_GT(times, 0) << "the simulator is idle: no " << what;
}

TEST(ParameterServer, KeepsItsPromisesInAThousandWorlds) {
  constexpr uint64_t kSeeds = 1000;
  const char* one = std::getenv("PS_SEED");
  const char* many = std::getenv("PS_SEEDS");
  const char* first = std::getenv("PS_FIRST");
  const char* start = one ? one : first;
  const uint64_t begin = start ? std::strtoull(start, nullptr, 10) : 1;
  const uint64_t seeds = one ? 1 : many ? std::strtoull(many, nullptr, 10) : kSeeds;
  Outcome sum;
  uint64_t failed = 0;
  for (uint64_t seed = begin; seed < begin + seeds && failed < 3; ++seed) {
    const Scenario scenario = make_scenario(seed);
    if (one) fmt::print("{}\n", describe(scenario));
    const Outcome outcome = simulate(scenario);
    report(scenario, outcome);
    failed += outcome.breaches.empty() ? 0 : 1;
    add(sum, outcome);
  }
  if (seeds >= kSeeds && failed == 0) expect_misfortunes(sum);
  fmt::print(
      "{} seeds: {} events, {} crashes, {} epochs of ranges, {} snapshots, {} returns to one, {} "
      "pushes, {} pulls, {} batches done twice and taken once, {} messages refused; {} messages "
      "lost, {} repeated, {} late, {} partitions, {} servers came and {} left\n",
      seeds, sum.events, sum.crashes, sum.epochs, sum.snapshots, sum.rollbacks, sum.writes,
      sum.reads, sum.repeated, sum.refused, sum.happened.lost, sum.happened.repeated,
      sum.happened.late, sum.partitions, sum.joins, sum.departures);
}

/// Workers that have long tasks do not need the manager until the next one.
TEST(ParameterServer, GoesOnWhileTheManagerIsAway) {
  Scenario scenario = make_scenario(1);
  ps::JobConfig& job = scenario.job;
  job.servers = job.workers = 2;
  job.copies = 1;
  job.data = {.epochs = 1, .batches_per_epoch = 60, .steps_per_task = 30};
  job.tables = {{.name = "ledger",
                 .type = ps::ValueType::Float64,
                 .elems = job.ranges * job.batches(),
                 .consistency = ps::Consistency::Stale,
                 .tau = 2,
                 .rule = ps::make_sgd({.lr = -1})},
                {.name = "counters",
                 .kind = ps::TableKind::Sparse,
                 .elems = 1,
                 .consistency = ps::Consistency::Free,
                 .rule = ps::make_sgd({.lr = -1})}};
  scenario = {.seed = 1,
              .job = job,
              .manager_leaves = std::chrono::milliseconds(60),
              .manager_returns = std::chrono::milliseconds(260)};
  const Outcome outcome = simulate(scenario);
  report(scenario, outcome);
  EXPECT_GE(outcome.writes_without_manager, 10);  // two workers, 200 virtual ms, 17 ms a step
}

}  // namespace
}  // namespace trireme::sim
