#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/compress/compressor.h"

namespace trireme::parallel {

/// How gradients are compressed on the wire.
enum class Compression : uint8_t { None, Fp16, Bf16, Int8, OneBit, TopK, RandomK, PowerSgd, Auto };

/// "none", "fp16", ...: as in configurations.
std::string_view to_string(Compression kind);

struct CompressOptions {
  Compression kind = Compression::None;
  double ratio = 0.01;    ///< TopK, RandomK: the fraction of a gradient that is sent
  int64_t rank = 4;       ///< PowerSgd: columns of the two factors
  double min_saving = 1;  ///< PowerSgd: matrices whose factors are so many times smaller
  bool feedback = true;   ///< add what was not sent to the next gradient
  int64_t warmup = 0;     ///< the first updates send everything
  std::vector<std::string> keep = {};  ///< patterns of parameters that are never compressed
  uint64_t seed = 1;                   ///< of random numbers: the run's
  /// A compressor of your own, instead of `kind`.
  std::shared_ptr<const compress::Compressor> own = nullptr;

  bool compresses() const { return kind != Compression::None || own != nullptr; }
};

/// Throws MisuseError for a ratio that is not in (0, 1], or a rank below 1.
void check(const CompressOptions& options);

}  // namespace trireme::parallel
