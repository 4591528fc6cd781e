#include "trireme/ps/job.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/storage.h"
#include "trireme/ps/stored_values.h"
#include "trireme/ps/view.h"

namespace trireme::ps {

std::string name_of(NodeId node) {
  if (node.role == Role::Manager) return "the manager";
  if (node.role == Role::Watcher) return "a watcher";
  return fmt::format("{} {}", node.role == Role::Server ? "server" : "worker", node.index);
}

size_t bytes_of(ValueType type) {
  return type == ValueType::Float32 ? sizeof(float) : sizeof(double);
}

uint64_t JobConfig::id() const {
  return core::hash64(name);
}

namespace {

/// What decides over the meaning of messages and the results, and nothing that one node alone
/// needs, such as times.
std::string agreed(const JobConfig& job) {
  Writer writer;
  writer(job.name, job.seed, job.workers, job.worker_ranks, job.copies, job.ranges, job.lanes,
         job.data.begin, job.data.epochs, job.data.batches_per_epoch, job.data.steps_per_task);
  for (const TableConfig& table : job.tables) {
    writer(table.name, static_cast<uint8_t>(table.kind), static_cast<uint8_t>(table.type),
           table.elems, static_cast<uint8_t>(table.consistency), table.tau, table.rule->describe(),
           table.clip_norm, table.check_finite, table.staleness_aware, table.init_scale,
           table.most_rows, table.rank,
           table.filter ? std::string(table.filter->name()) : std::string());
    for (const PieceFactors& factors : table.factors) writer(factors.rate, factors.decay);
    for (const Piece& piece : table.pieces)
      writer(piece.name, piece.whole, piece.offset, piece.shape, piece.begin, piece.count);
  }
  return writer.take();
}

uint64_t padded(int64_t elems) {
  return (static_cast<uint64_t>(elems) + kGrain - 1) / kGrain * kGrain;
}

}  // namespace

uint64_t JobConfig::fingerprint() const {
  return core::hash64(agreed(*this));
}

void lay_out(TableConfig& table, std::vector<Piece> pieces) {
  table.pieces = std::move(pieces);
  table.elems = 0;
  for (const Piece& piece : table.pieces) table.elems += padded(piece.count);
}

std::vector<uint64_t> piece_begins(const TableConfig& table) {
  std::vector<uint64_t> begins;
  uint64_t next = 0;
  for (const Piece& piece : table.pieces) {
    begins.push_back(next);
    next += padded(piece.count);
  }
  return begins;
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

/// What dense tables take in a range.
uint64_t dense_bytes(const JobConfig& job, RangeId range) {
  uint64_t bytes = 0;
  for (TableId table = 0; table < job.tables.size(); ++table) {
    const TableConfig& config = job.tables[table];
    if (config.kind != TableKind::Dense) continue;
    const uint64_t elems = block_of(job, table, range).elems;
    bytes += (elems + config.rule->state().elems(elems)) * bytes_of(config.type);
  }
  return bytes;
}

/// Dense tables are there from the beginning: a server that would get too much of them is known at
/// once.
void check_memory(const JobConfig& job) {
  if (job.server_bytes == 0) return;
  std::vector<uint32_t> servers(job.servers);
  std::iota(servers.begin(), servers.end(), 0);
  const auto chains = place_ranges(job.ranges, servers, job.copies + 1);
  std::vector<uint64_t> held(job.servers);
  for (RangeId range = 0; range < job.ranges; ++range)
    for (const uint32_t server : chains[range]) held[server] += dense_bytes(job, range);
  const auto most = std::ranges::max_element(held);
  core::check(*most <= job.server_bytes,
              "job '{}': server {} would have {} bytes of dense tables and of what their rules "
              "keep, of its own ranges and as copies, but each may take {}; add servers, or raise "
              "server_bytes (sync.server_memory_mib)",
              job.name, most - held.begin(), *most, job.server_bytes);
}

void check_table(const TableConfig& table, const JobConfig& job) {
  core::check(table.tau >= 0, "table '{}': tau is {}; use 0 for lockstep or more for stale",
              table.name, table.tau);
  core::check(table.rule != nullptr, "table '{}': has no rule; give it one, such as make_sgd({{}})",
              table.name);
  core::check(table.elems > 0, "table '{}': has rows of 0 elements; give it at least 1",
              table.name);
  core::check(table.kind == TableKind::Sparse || table.rule->is_elementwise(),
              "table '{}': is dense, and '{}' is a rule for rows; use it for sparse tables",
              table.name, table.rule->describe());
  core::check(table.rank < job.worker_ranks,
              "table '{}': belongs to rank {} of a worker, but workers have {}; use one below",
              table.name, table.rank, job.worker_ranks);
  core::check(table.kind == TableKind::Sparse || table.filter == nullptr ||
                  table.type == ValueType::Float32,
              "table '{}': filters are for float32; take the filter away", table.name);
  core::check(table.stored_as.empty() || (table.type == ValueType::Float64 &&
                                          table.stored_as.size() == table.pieces.size()),
              "table '{}': has {} pieces and {} ways to store them, of which only float64 has any; "
              "give one for each piece of a float64 table, or none",
              table.name, table.pieces.size(), table.stored_as.size());
  for (const std::string& dtype : table.stored_as)
    core::check(can_store(dtype), "table '{}': a piece cannot be stored as '{}'; use {}",
                table.name, dtype, kStoredTypes);
  core::check(table.clip_norm >= 0, "table '{}': clip_norm is {}; use 0 for none or more",
              table.name, table.clip_norm);
}

}  // namespace

void check(const JobConfig& job) {
  core::check(
      job.servers > 0 && job.workers > 0 && job.worker_ranks > 0 && job.ranges > 0 && job.lanes > 0,
      "job '{}': {} servers, {} workers of {} ranks, {} ranges, {} lanes; each must be at "
      "least 1",
      job.name, job.servers, job.workers, job.worker_ranks, job.ranges, job.lanes);
  core::check(job.copies < job.servers,
              "job '{}': {} copies need {} servers, but there are {}; use at most {} copies",
              job.name, job.copies, job.copies + 1, job.servers, job.servers - 1);
  core::check(job.data.batches_per_epoch > 0,
              "job '{}': an epoch has 0 batches; give it at least 1, and an empty job 0 epochs",
              job.name);
  core::check(job.data.steps_per_task > 0, "job '{}': a task has 0 steps; give it at least 1",
              job.name);
  core::check(
      job.data.snapshot_steps == 0 || job.data.snapshot_steps >= job.data.steps_per_task,
      "job '{}': a task has {} steps, and a snapshot is wanted every {}; use at most so many "
      "steps a task",
      job.name, job.data.steps_per_task, job.data.snapshot_steps);
  core::check(!job.tables.empty(), "job '{}': has no table; give it one", job.name);
  for (const TableConfig& table : job.tables) check_table(table, job);
  check_memory(job);
  core::check(
      job.data.begin <= job.batches() && (!job.in_lanes() || job.data.begin % job.workers == 0),
      "job '{}': begins at batch {} of {}, in lockstep at a multiple of the {} workers", job.name,
      job.data.begin, job.batches(), job.workers);
  core::check(
      !job.in_lanes() || job.data.batches_per_epoch % job.workers == 0,
      "job '{}': lockstep deals {} batches of an epoch to {} workers, which leaves {} over; "
      "use a multiple of {} batches",
      job.name, job.data.batches_per_epoch, job.workers, job.data.batches_per_epoch % job.workers,
      job.workers);
}

}  // namespace trireme::ps
