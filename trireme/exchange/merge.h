#pragma once

#include <functional>
#include <string>

#include "trireme/exchange/import.h"

namespace trireme::exchange {

struct MergeOptions {
  std::string base = {};  ///< a checkpoint or a Hugging Face folder; empty: what the adapters name
  /// Called after every block. If it throws, the work ends and its files are removed.
  std::function<void(const Progress&)> progress = {};
};

/// Adds the low-rank adapters of the checkpoint `adapters` to the weights that they belong to, and
/// writes these as a checkpoint's folder `to`: one file, every tensor whole.
///
///   adapters   h.0.attn.c_attn.lora_A.weight  A [rank, in]
///              h.0.attn.c_attn.lora_B.weight  B [out, rank]     extra: {"lora": {"scale": s}}
///   base       h.0.attn.c_attn.weight         W [out, in]
///   to         h.0.attn.c_attn.weight         W + s B A: in double precision, rounded once
///              everything else                as in the base, bit for bit; buffers as in
///              `adapters`
///
/// Some rows of a tensor are in memory at a time. `to` appears complete or not at all. Throws
/// ConfigError if `to` exists, if `adapters` holds none, or if they are not of this base.
void merge_adapters(const std::string& adapters, const std::string& to,
                    const MergeOptions& options);

}  // namespace trireme::exchange
