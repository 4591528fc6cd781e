#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/format/load.h"
#include "trireme/format/parts.h"
#include "trireme/ps/environment.h"

namespace trireme::ps {

/// Snapshots as checkpoints, in a folder that all nodes see. Any run can continue from them, and
/// `trireme ckpt` reads them.
///
///   wte.weight                     a dense table's pieces, under the names of their parameters
///   optim/exp_avg/wte.weight       what the rule keeps for them
///   TABLE/range-3/keys             the rows of a sparse table, and which keys they have;
///   TABLE/range-3/rows             a row is its values and what the rule keeps for them
///   ps/TABLE/range-3               the batches that are in the range, as bytes
///   ps/TABLE/range-3/scalars       what the rule keeps once for a row, such as its steps
class SnapshotFiles {
 public:
  struct Options {
    std::string folder;  ///< of all checkpoints
    int64_t keep = 3;
    /// What the index says besides, for whoever continues from it.
    std::function<core::Json(const SnapshotOrder&)> extra = {};
  };
  SnapshotFiles(const JobConfig& job, Options options) : job_(job), options_(std::move(options)) {}

  void begin(const SnapshotOrder& order) const;
  /// Returns what `complete` must know of it. Throws CheckpointError. From any thread.
  std::string save(const SnapshotPart& part, const RangeState::Image& image) const;
  void complete(const SnapshotOrder& order, const std::vector<std::string>& contents) const;
  /// Removes the oldest snapshots until `keep` are left, but not this one, which is complete.
  void prune(const SnapshotOrder& newest) const;
  /// Removes what there is of a snapshot that will not be complete.
  void abandon(const SnapshotOrder& order) const;
  std::optional<RangeState::Image> load(const SnapshotPart& part) const;

 private:
  std::string folder_of(const SnapshotPart& part) const;
  std::optional<int64_t> start_step() const;
  /// `converted`: the memory of what is stored as another type.
  std::vector<format::PartItem> dense_items(const SnapshotPart& part, const StorageImage& image,
                                            std::deque<std::string>& converted) const;
  std::vector<format::PartItem> sparse_items(const SnapshotPart& part,
                                             const StorageImage& image) const;
  RangeState::Image load_from(format::Checkpoint& from, const SnapshotPart& part) const;
  StorageImage load_dense(format::Checkpoint& from, const SnapshotPart& part) const;
  StorageImage load_sparse(format::Checkpoint& from, const SnapshotPart& part) const;
  std::string range_name(const SnapshotPart& part, uint32_t range) const;

  const JobConfig& job_;
  Options options_;
};

}  // namespace trireme::ps
