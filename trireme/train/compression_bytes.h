#pragma once

#include <vector>

#include "trireme/config/config.h"
#include "trireme/layout/reduction.h"
#include "trireme/nn/parameters.h"

namespace trireme::train {

/// What the compression of gradients takes on the first rank, in bytes.
struct CompressionBytes {
  int64_t kept = 0;        ///< residuals and factors, twice: of this step and of the one before
  int64_t travelling = 0;  ///< copies of gradients and encoded bytes, at the end of backward
  int64_t saved = 0;       ///< in a checkpoint
};
/// `block_bytes`: of the largest bucket, or of the largest unit.
CompressionBytes compression_bytes(const config::Config& config,
                                   const std::vector<nn::Parameter>& parameters,
                                   const Degrees& degrees, const Policy& policy,
                                   int64_t block_bytes);

}  // namespace trireme::train
