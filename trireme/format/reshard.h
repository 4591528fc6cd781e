#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "trireme/core/units.h"

namespace trireme::format {

/// Memory for elements on their way; the files that are open add 1 MiB each (Checkpoint).
constexpr int64_t kReshardBytes = 64 * core::kMiB;

struct ReshardOptions {
  int ranks = 1;
  struct Progress {
    int64_t done_bytes = 0, all_bytes = 0;  ///< of elements
    int done_files = 0, all_files = 0;
  };
  /// Called after every piece and every file. What it throws ends the work: nothing is left of it.
  std::function<void(const Progress&)> progress = {};
};

/// Writes the checkpoint `from` anew as the folder `to`:
///
///     ranks 1     part-00000.safetensors    every tensor whole, under its own name
///     ranks N     part-00000 ... N - 1      every tensor cut flat, as the ranks of shard N hold it
///
/// No more than kReshardBytes of elements are held. What is read is verified, what is written gets
/// its checksums on the way, and `to` appears whole or not at all. ConfigError if it is there
/// already; CheckpointError for damage, or if it cannot be written.
void reshard(const std::string& from, const std::string& to, const ReshardOptions& options);

}  // namespace trireme::format
