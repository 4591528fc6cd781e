#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "trireme/core/units.h"

namespace trireme::format {

/// Size of the copy buffer; each open file adds 1 MiB (Checkpoint).
constexpr int64_t kReshardBytes = 64 * core::kMiB;

struct ReshardOptions {
  int ranks = 1;
  struct Progress {
    int64_t done_bytes = 0, all_bytes = 0;  ///< of elements
    int done_files = 0, all_files = 0;
  };
  /// Called after every piece and every file. If it throws, the work ends and its files are
  /// removed.
  std::function<void(const Progress&)> progress = {};
};

/// Rewrites the checkpoint `from` as the folder `to`:
///
///     ranks 1     part-00000.safetensors    every tensor whole, under its own name
///     ranks N     part-00000 ... N - 1      every tensor cut flat, as N ranks with shard N have it
///
/// At most kReshardBytes of elements are in memory. What it reads is verified, checksums are taken
/// while it writes, and `to` appears complete or not at all. Throws ConfigError if `to` exists,
/// CheckpointError for damage or if it cannot write.
void reshard(const std::string& from, const std::string& to, const ReshardOptions& options);

}  // namespace trireme::format
