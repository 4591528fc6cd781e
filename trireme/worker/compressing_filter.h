#pragma once

#include <memory>

#include "trireme/compress/compressor.h"
#include "trireme/ps/filter.h"

namespace trireme::ps {

/// Pushes travel as a gradient compressor encodes them. `feedback`: whether what was lost is added
/// to the worker's next push of the same values. The seed decides how compressors round at random.
std::shared_ptr<const Filter> make_filter(std::shared_ptr<const compress::Compressor> compressor,
                                          uint64_t seed, bool feedback = true);

}  // namespace trireme::ps
