#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::compress {

/// Where a block comes from. Random numbers depend on this alone, so that every run, and a run that
/// was resumed, rounds alike.
struct BlockPlace {
  uint64_t seed = 0;    ///< of the run
  uint64_t stream = 0;  ///< hash of the block's name, the rank that encodes it and the direction
  int64_t step = 0;     ///< counts updates
  int64_t first = 0;    ///< index of the block's first element
};

/// Turns blocks of numbers into fewer bytes, and back into about the same numbers. Derive from it
/// and write `encode` and `decode` to add a compressor. A reducer calls them on a thread of its
/// own, and several reducers may share a compressor: keep nothing in it that a call changes.
///
///   block  float32 or float64, one dim, contiguous, on the CPU
///   bytes  uint8, one dim; their number depends on the number of elements and the dtype alone
class Compressor {
 public:
  virtual ~Compressor() = default;

  /// For messages and checkpoints: "int8".
  virtual std::string_view name() const = 0;

  /// How many bytes `encode` makes of so many elements: a receiver needs to know.
  virtual int64_t num_bytes(int64_t elements, at::ScalarType dtype) const;

  virtual at::Tensor encode(const at::Tensor& block, const BlockPlace& place) const = 0;

  /// Writes all elements of `block`.
  virtual void decode(const at::Tensor& bytes, const at::Tensor& block) const = 0;

  /// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): encodes block + residual, and
  /// leaves in `residual` what the bytes do not say, and 0 where they say NaN or infinity: a
  /// gradient that overflows does not spoil those of later steps.
  virtual at::Tensor encode_with_feedback(const at::Tensor& block, const at::Tensor& residual,
                                          const BlockPlace& place) const;
};

}  // namespace trireme::compress
