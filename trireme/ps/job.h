#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/layout/piece.h"
#include "trireme/ps/filter.h"
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

/// Writes the first values of a dense table: those of elements [piece.begin, + piece.count) of a
/// parameter's box.
class FirstValues {
 public:
  virtual ~FirstValues() = default;
  virtual void fill(const Piece& piece, std::span<float> values) const = 0;
  virtual void fill(const Piece& piece, std::span<double> values) const = 0;
};

/// What holds for one piece of a dense table: factors of the rule's learning rate and weight decay.
struct PieceFactors {
  double rate = 1;
  double decay = 1;
};

struct TableConfig {
  std::string name = {};
  TableKind kind = TableKind::Dense;
  ValueType type = ValueType::Float32;
  uint64_t elems = 0;  ///< dense: of the whole table; sparse: of a row
  /// Dense: what the table consists of, as `lay_out` has placed it; empty: of one vector.
  std::vector<Piece> pieces = {};
  std::vector<PieceFactors> factors = {};  ///< of each piece; empty: 1
  /// Of float64: as what checkpoints hold each piece ("F32", "I64"; see can_store); empty: as it
  /// is.
  std::vector<std::string> stored_as = {};
  Consistency consistency = Consistency::Lockstep;
  int64_t tau = 0;  ///< of Stale; 0 is Lockstep
  RulePtr rule = {};
  double clip_norm = 0;  ///< Lockstep: of the gradient of all tables that clip; 0: none
  /// Lockstep: a clock whose gradients are not finite is not applied.
  bool check_finite = false;
  bool staleness_aware = false;  ///< a push that missed n updates counts 1 / (1 + n)
  double init_scale = 0;         ///< first values are uniform in [-scale, scale]
  std::shared_ptr<const FirstValues> first_values = {};  ///< dense: instead
  uint64_t most_rows = 0;  ///< sparse: per range; then the row longest untouched goes; 0: all
  uint32_t rank = 0;       ///< of each worker, the one that uses the table
  std::shared_ptr<const Filter> filter = {};  ///< how pushed values travel; null: as they are
};

/// The data order: epochs x batches, handed out in tasks of consecutive steps.
struct DataOrder {
  uint64_t begin = 0;  ///< the batches before it were done by an earlier run
  uint64_t epochs = 1;
  uint64_t batches_per_epoch = 1;
  uint64_t steps_per_task = 1;
  /// A snapshot after every so many steps of all workers; 0: none.
  uint64_t snapshot_steps = 0;
};

struct Timing {
  Time heartbeat = std::chrono::milliseconds(500);
  Time dead_after = std::chrono::seconds(5);  ///< without a heartbeat
  /// The same for a node whose stream to the manager has broken, as that of a dead process does.
  Time gone_after = std::chrono::milliseconds(300);
  /// A server that is the last to hold some range, and whose end means a return to the snapshot,
  /// has this long.
  Time lost_after = std::chrono::seconds(20);
  Time retry = std::chrono::milliseconds(500);
  Time backup_after = Time::zero();    ///< a task takes longer: hand it out twice; 0: never
  Time snapshot_every = Time::zero();  ///< 0: never
  /// A snapshot of which no part has come for so long is given up; the last one ends the job.
  Time save_within = std::chrono::seconds(60);
  Time gather = std::chrono::seconds(1);  ///< how long a new manager waits for all its servers
};

/// What all nodes of a job agree on.
struct JobConfig {
  std::string name = "job";
  uint64_t seed = 0;
  uint32_t servers = 1;
  uint32_t workers = 1;
  uint32_t worker_ranks = 1;  ///< processes of each worker
  uint32_t copies = 0;        ///< successors that hold each range
  uint32_t ranges = 16;
  uint32_t lanes = 1;  ///< threads of a server: lane l has ranges l, l + lanes, ...
  DataOrder data = {};
  std::vector<TableConfig> tables = {};
  std::string start_from = {};        ///< the folder of a checkpoint; empty: from the first values
  uint64_t server_bytes = 0;          ///< memory budget of a server; 0: none
  uint64_t transfer_bytes = 1 << 20;  ///< pieces in which a range moves
  Timing timing = {};
  bool short_log = false;  ///< of the manager: written anew as often as it can be, for tests
  Plant plant = Plant::None;

  uint64_t id() const;
  /// A hash of all that nodes must agree on.
  uint64_t fingerprint() const;
  uint32_t lane_of(RangeId range) const { return range % lanes; }
  /// Whether some table is in lockstep: then worker w does the w-th batch of every clock.
  bool in_lanes() const;
  /// Whether the table collects whole clocks: Lockstep or Stale with tau 0.
  bool in_lockstep(TableId table) const;
  uint64_t batches() const { return data.epochs * data.batches_per_epoch; }
};

/// Places pieces one after the other in a dense table. Each begins at a multiple of 16 elements,
/// and so do ranges: vector kernels then round every element as they do in the whole parameter.
///
///   | piece 0 ...... pad | piece 1 .. pad | piece 2 ...
constexpr uint64_t kGrain = 16;
void lay_out(TableConfig& table, std::vector<Piece> pieces);
/// Where each piece begins.
std::vector<uint64_t> piece_begins(const TableConfig& table);

/// Throws MisuseError, with the values and the remedy, for a job that cannot be.
void check(const JobConfig& job);

}  // namespace trireme::ps
