#include "sim/scenario.h"

#include <fmt/format.h>

namespace trireme::sim {

using ps::Consistency;
using std::chrono::milliseconds;

namespace {

ps::TableConfig ledger_of(const ps::JobConfig& job, Consistency consistency, int64_t tau) {
  return {.name = "ledger",
          .type = ps::ValueType::Float64,
          .elems = job.ranges * job.batches(),
          .consistency = consistency,
          .tau = tau,
          .rule = ps::make_sgd({.lr = -1})};
}

ps::TableConfig counters_of(Consistency consistency) {
  return {.name = "counters",
          .kind = ps::TableKind::Sparse,
          .elems = 1,
          .consistency = consistency,
          .rule = ps::make_sgd({.lr = -1})};
}

ps::TableConfig weights_of(Random& random) {
  return {.name = "weights",
          .type = ps::ValueType::Float64,
          .elems = kWeightElems,
          .rule = ps::make_sgd({.lr = 0.05, .momentum = 0.5}),
          .clip_norm = random.chance(0.5) ? 0.5 : 0,
          .init_scale = 1};
}

void choose_tables(ps::JobConfig& job, Random& random) {
  const uint64_t kind = random.below(4);
  if (kind == 0) {
    const auto tau = static_cast<int64_t>(random.below(3));  // 0 is lockstep by another name
    const bool by_name = random.chance(0.3);
    job.tables = {ledger_of(job, by_name ? Consistency::Lockstep : Consistency::Stale, tau),
                  counters_of(Consistency::Lockstep), weights_of(random)};
  } else if (kind == 1) {
    job.tables = {ledger_of(job, Consistency::Free, 0), counters_of(Consistency::Free)};
  } else {
    const auto tau = static_cast<int64_t>(random.between(1, 3));
    job.tables = {ledger_of(job, Consistency::Stale, tau), counters_of(Consistency::Free)};
  }
}

}  // namespace

Scenario make_scenario(uint64_t seed, ps::Plant plant) {
  Random random(seed * 0x9E3779B97F4A7C15 + 1);
  Scenario scenario{.seed = seed};
  ps::JobConfig& job = scenario.job;
  job.name = "simulation";
  job.seed = seed;
  job.plant = plant;
  job.servers = static_cast<uint32_t>(random.between(1, 4));
  job.workers = static_cast<uint32_t>(random.between(1, 3));
  job.copies = static_cast<uint32_t>(random.below(std::min(job.servers, 3U)));
  job.ranges = static_cast<uint32_t>(random.between(1, 3));
  const bool fast = random.chance(0.5);
  scenario.step = milliseconds(fast ? 2 : 8);
  job.data = {.epochs = random.between(1, 2),
              .batches_per_epoch = 6 * (fast ? random.between(3, 6) : random.between(1, 3)),
              .steps_per_task = random.between(1, 3)};
  job.timing = {.heartbeat = milliseconds(15),
                .dead_after = milliseconds(90),
                .gone_after = milliseconds(30),
                .lost_after = milliseconds(400),
                .retry = milliseconds(12),
                .backup_after = random.chance(0.3) ? milliseconds(40) : milliseconds(0),
                .snapshot_every = random.chance(0.6) ? milliseconds(80) : milliseconds(0),
                .gather = milliseconds(200)};
  choose_tables(job, random);
  job.lanes = static_cast<uint32_t>(random.between(1, 2));
  job.transfer_bytes = random.chance(0.5) ? 300 : 1 << 20;
  job.short_log = random.chance(0.5);
  scenario.last_snapshot = random.chance(0.5);
  if (random.chance(0.3)) job.data.snapshot_steps = random.between(3, 6);
  scenario.weather = {.lose = random.chance(0.5) ? 0.05 : 0,
                      .repeat = random.chance(0.6) ? 0.1 : 0,
                      .late = random.chance(0.6) ? 0.1 : 0};
  scenario.push_pull = random.chance(0.5);
  scenario.slow_workers = random.chance(0.3) ? 1 : 0;
  scenario.crashes = random.chance(0.8) ? random.between(1, 6) : 0;
  scenario.partitions = random.chance(0.5) ? random.between(1, 4) : 0;
  scenario.falls = job.copies > 0 ? random.below(4) : 0;
  scenario.joins = random.chance(0.3);
  scenario.leaves = job.servers > 2 && random.chance(0.3);
  scenario.blackout = random.chance(0.1);
  scenario.server_dies = job.servers > 2 && random.chance(0.2);
  scenario.worker_dies = job.workers > 1 && !job.in_lanes() && random.chance(0.2);
  scenario.lose_power = random.chance(0.3) ? 0.04 : 0;
  return scenario;
}

std::string describe(const Scenario& scenario) {
  const ps::JobConfig& job = scenario.job;
  return fmt::format(
      "seed {}: {} servers, {} copies, {} workers, {} ranges, {} epochs of {} batches in tasks of "
      "{}; ledger {} tau {}; {} crashes, {} partitions, {} falls{}{}{}{}{}{}{}",
      scenario.seed, job.servers, job.copies, job.workers, job.ranges, job.data.epochs,
      job.data.batches_per_epoch, job.data.steps_per_task,
      job.in_lockstep(kLedger) ? "lockstep"
      : job.tables[kLedger].consistency == Consistency::Free
          ? "free"
          : (job.in_lanes() ? "stale in lanes" : "stale"),
      job.tables[kLedger].tau, scenario.crashes, scenario.partitions, scenario.falls,
      scenario.blackout ? ", a blackout" : "", scenario.server_dies ? ", a server dies" : "",
      scenario.worker_dies ? ", a worker dies" : "", scenario.joins ? ", one server joins" : "",
      scenario.leaves ? ", one leaves" : "", scenario.push_pull ? ", push-pull" : "",
      scenario.lose_power > 0 ? ", the manager dies at writes" : "");
}

const char* name_of(Promise promise) {
  switch (promise) {
    case Promise::Kept: return "no acknowledged update is lost";
    case Promise::Once: return "no update is applied twice";
    case Promise::Owner: return "one owner per range and epoch";
    case Promise::Monotonic: return "reads are monotonic per worker";
    case Promise::OwnWrites: return "a worker reads its own writes";
    case Promise::Bound: return "staleness bound";
    case Promise::Work: return "all work is done exactly once";
    case Promise::Exact: return "lockstep equals a plain loop";
    case Promise::Linear: return "counters are linearizable";
    case Promise::Same: return "servers of a chain have the same bits";
    case Promise::Copies: return "with a copy left, nothing returns to a snapshot";
    case Promise::Progress: return "the job ends";
  }
  return "?";
}

}  // namespace trireme::sim
