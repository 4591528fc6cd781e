#pragma once

#include <string>
#include <vector>

#include "trireme/ps/ids.h"
#include "trireme/ps/plant.h"
#include "trireme/ps/rule.h"

namespace trireme::ps {

/// What a worker at clock c is sure to see.
///   Lockstep   exactly the updates of clocks < c, each clock's applied as one
///   Stale      at least the updates of clocks <= c - tau - 1
///   Free       at least its own
enum class Consistency : uint8_t { Lockstep, Stale, Free };

enum class ValueType : uint8_t { Float32, Float64 };
size_t bytes_of(ValueType type);

enum class TableKind : uint8_t { Dense, Sparse };

struct TableConfig {
  std::string name = {};
  TableKind kind = TableKind::Dense;
  ValueType type = ValueType::Float32;
  uint64_t elems = 0;  ///< dense: of the whole table; sparse: of a row
  Consistency consistency = Consistency::Lockstep;
  int64_t tau = 0;  ///< of Stale; 0 is Lockstep
  RulePtr rule = {};
  /// Stale and Free divide each push by this: the weight of the whole batch of one clock. Lockstep
  /// divides by the weights that came.
  double batch_weight = 1;
  double clip_norm = 0;          ///< Lockstep: of the gradient over all ranges; 0: none
  bool staleness_aware = false;  ///< a push that missed n updates counts 1 / (1 + n)
  double init_scale = 0;         ///< first values are uniform in [-scale, scale]
  uint64_t most_rows = 0;        ///< sparse: per range; then the row longest untouched goes; 0: all
};

/// The data order: epochs x batches, handed out in tasks of consecutive steps.
struct DataOrder {
  uint64_t epochs = 1;
  uint64_t batches_per_epoch = 1;
  uint64_t steps_per_task = 1;
};

struct Timing {
  Time heartbeat = std::chrono::milliseconds(500);
  Time dead_after = std::chrono::seconds(5);  ///< without a heartbeat
  /// A server that is the last to hold some range, and whose end means a return to the snapshot,
  /// has this long.
  Time lost_after = std::chrono::seconds(20);
  Time retry = std::chrono::milliseconds(500);
  Time backup_after = Time::zero();       ///< a task takes longer: hand it out twice; 0: never
  Time snapshot_every = Time::zero();     ///< 0: never
  Time gather = std::chrono::seconds(1);  ///< how long a new manager waits for all its servers
};

/// What all nodes of a job agree on.
struct JobConfig {
  std::string name = "job";
  uint64_t seed = 0;
  uint32_t servers = 1;
  uint32_t workers = 1;
  uint32_t copies = 0;  ///< successors that hold each range
  uint32_t ranges = 16;
  DataOrder data = {};
  std::vector<TableConfig> tables = {};
  uint64_t server_bytes = 0;  ///< memory budget of a server; 0: none
  Timing timing = {};
  Plant plant = Plant::None;

  uint64_t id() const;
  /// Whether some table is in lockstep: then worker w does the w-th batch of every clock.
  bool in_lanes() const;
  /// Whether the table collects whole clocks: Lockstep or Stale with tau 0.
  bool in_lockstep(TableId table) const;
  uint64_t batches() const { return data.epochs * data.batches_per_epoch; }
};

/// Throws MisuseError, with the values and the remedy, for a job that cannot be.
void check(const JobConfig& job);

}  // namespace trireme::ps
