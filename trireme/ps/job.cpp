#include "trireme/ps/job.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::ps {

std::string name_of(NodeId node) {
  if (node.role == Role::Manager) return "the manager";
  return fmt::format("{} {}", node.role == Role::Server ? "server" : "worker", node.index);
}

size_t bytes_of(ValueType type) {
  return type == ValueType::Float32 ? sizeof(float) : sizeof(double);
}

uint64_t JobConfig::id() const {
  return core::hash64(name);
}

bool JobConfig::in_lockstep(TableId table) const {
  const TableConfig& config = tables[table];
  return config.consistency == Consistency::Lockstep ||
         (config.consistency == Consistency::Stale && config.tau == 0);
}

bool JobConfig::in_lanes() const {
  for (TableId table = 0; table < tables.size(); ++table)
    if (in_lockstep(table)) return true;
  return false;
}

namespace {

void check_table(const TableConfig& table, const JobConfig& job) {
  core::check(table.tau >= 0, "table '{}': tau is {}; use 0 for lockstep or more for stale",
              table.name, table.tau);
  core::check(table.rule != nullptr, "table '{}': has no rule; give it one, such as make_sgd({{}})",
              table.name);
  core::check(table.elems > 0, "table '{}': has rows of 0 elements; give it at least 1",
              table.name);
  core::check(table.batch_weight > 0 && std::isfinite(table.batch_weight),
              "table '{}': the batch has weight {}; give it one above 0", table.name,
              table.batch_weight);
  core::check(table.clip_norm >= 0, "table '{}': clip_norm is {}; use 0 for none or more",
              table.name, table.clip_norm);
  core::check(table.kind == TableKind::Sparse || table.elems >= job.ranges,
              "table '{}': {} elements cannot lie in {} ranges; use fewer ranges", table.name,
              table.elems, job.ranges);
}

}  // namespace

void check(const JobConfig& job) {
  core::check(job.servers > 0 && job.workers > 0 && job.ranges > 0,
              "job '{}': {} servers, {} workers, {} ranges; each must be at least 1", job.name,
              job.servers, job.workers, job.ranges);
  core::check(job.copies < job.servers,
              "job '{}': {} copies need {} servers, but there are {}; use at most {} copies",
              job.name, job.copies, job.copies + 1, job.servers, job.servers - 1);
  core::check(job.data.steps_per_task > 0, "job '{}': a task has 0 steps; give it at least 1",
              job.name);
  core::check(!job.tables.empty(), "job '{}': has no table; give it one", job.name);
  for (const TableConfig& table : job.tables) check_table(table, job);
  core::check(
      !job.in_lanes() || job.data.batches_per_epoch % job.workers == 0,
      "job '{}': lockstep deals {} batches of an epoch to {} workers, which leaves {} over; "
      "use a multiple of {} batches",
      job.name, job.data.batches_per_epoch, job.workers, job.data.batches_per_epoch % job.workers,
      job.workers);
}

}  // namespace trireme::ps
