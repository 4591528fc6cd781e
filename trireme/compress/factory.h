#pragma once

#include <memory>
#include <string>

#include "trireme/compress/compressor.h"

namespace trireme::compress {

enum class Kind { Fp16, Bf16, Int8, OneBit, TopK };

/// Which compressor, and what it must know.
struct CompressorOptions {
  Kind kind = Kind::Fp16;
  double ratio = 0.01;   ///< topk: the fraction of elements that is sent
  std::string cpu = {};  ///< "base", "avx2" or "avx512"; empty: the best that this CPU has
};

/// Throws Error if the ratio is not more than 0 and at most 1, ConfigError if the CPU is another.
std::unique_ptr<Compressor> make_compressor(const CompressorOptions& options);

}  // namespace trireme::compress
