#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trireme/exchange/import.h"

namespace trireme::exchange {

/// The largest file that transformers writes.
constexpr int64_t kMostFileBytes = 5'000'000'000;

struct ExportOptions {
  std::optional<int64_t> vocab = {};  ///< fewer rows, or more: the mean of the others
  std::string dtype = {};             ///< "F32", ...; empty: as the checkpoint has it
  int64_t file_bytes = kMostFileBytes;
  std::string tokenizer = {};  ///< a folder with tokenizer files; empty: see `carried_for`
  std::function<void(const Progress&)> progress = {};
};

/// Writes the weights of a checkpoint as a folder that `from_pretrained` of transformers reads:
///
///     to/config.json, generation_config.json, tokenizer files
///        model.safetensors, or several of at most file_bytes and model.safetensors.index.json
///
/// What it reads is verified. `to` appears complete or not at all. Throws ConfigError if `to`
/// exists or transformers has no such model.
void export_checkpoint(const std::string& step, const std::string& to,
                       const ExportOptions& options);

}  // namespace trireme::exchange
