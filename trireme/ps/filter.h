#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::ps {

/// What a block of values is, for filters that round at random: the same block, encoded again, must
/// give the same bytes.
struct FilterPlace {
  uint64_t stream = 0;  ///< the worker, the table and the range
  uint64_t step = 0;    ///< the batch
};

/// Turns pushed values into fewer bytes on the worker, and back into about the same values on the
/// server. What was lost is fed back: the worker adds it to its next push of the same range.
class Filter {
 public:
  virtual ~Filter() = default;
  virtual std::string_view name() const = 0;
  /// The bytes of so many values.
  virtual size_t num_bytes(size_t elems) const = 0;
  /// Encodes values + residual, and leaves in the residual what the bytes do not say. An empty
  /// residual: encodes the values alone.
  virtual std::string encode(std::span<const float> values, std::span<float> residual,
                             const FilterPlace& place) const = 0;
  /// Writes all values. Throws CommError for bytes that `encode` never makes.
  virtual void decode(std::string_view bytes, std::span<float> values) const = 0;
};

}  // namespace trireme::ps
