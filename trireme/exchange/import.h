#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace trireme::exchange {

/// How much has been written, in bytes of elements.
struct Progress {
  int64_t done_bytes = 0, all_bytes = 0;
};

struct ImportOptions {
  std::optional<int64_t> vocab = {};  ///< model.vocab; more rows than theirs are the mean of theirs
  std::string dtype = {};             ///< "F32", ...; empty: as the files have it
  /// Called after every block. If it throws, the work ends and its files are removed.
  std::function<void(const Progress&)> progress = {};
};

/// Writes the weights of a Hugging Face folder as a checkpoint's folder `to`: step 0, one file,
/// every tensor whole, with the configuration of its model. The tokenizer's files are copied
/// beside.
///
///     HF_FOLDER   ── HfWeights ── blocks ── cast ──> SafetensorsWriter   to/part-00000.safetensors
///
/// Every byte is read once and written once; at most a few blocks are in memory. `to` appears
/// complete or not at all. Throws ConfigError if `to` exists or the folder does not fit.
void import_folder(const std::string& folder, const std::string& to, const ImportOptions& options);

}  // namespace trireme::exchange
