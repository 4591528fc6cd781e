#pragma once

#include <string>

#include "trireme/exchange/export.h"
#include "trireme/exchange/import.h"
#include "trireme/exchange/merge.h"

namespace trireme::cli {

/// Writes a Hugging Face folder as a checkpoint, shows progress and prints what was written.
/// Returns the exit code.
int import_hf(const std::string& folder, const std::string& to, exchange::ImportOptions options);

/// Writes the checkpoint of a step as a Hugging Face folder, in the same way.
int export_hf(const std::string& step, const std::string& to, exchange::ExportOptions options);

/// Writes the weights of the adapters of a step together with these, in the same way.
int merge_step(const std::string& step, const std::string& to, exchange::MergeOptions options);

/// The name that files have for --dtype: "F32" for "float32". Throws ConfigError for other words.
std::string stored_dtype(const std::string& word);

}  // namespace trireme::cli
