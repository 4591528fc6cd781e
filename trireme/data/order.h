#pragma once

#include <cstdint>
#include <vector>

#include "trireme/layout/even_part.h"

namespace trireme::data {

/// The order of samples: a function of (seed, epoch, position), the same for every world size, so
/// that resuming costs nothing.
///
///   batch b of an epoch is positions [b G, b G + G); batches never cross epochs, the last is
///   short; ranks take contiguous blocks of it, as even as can be, possibly empty
class Order {
 public:
  Order(uint64_t seed, int64_t samples, int64_t global_batch);

  int64_t batches_per_epoch() const;

  /// The samples of batch `number`, counted from 0 over all epochs.
  std::vector<int64_t> batch(int64_t number) const;
  /// The part of rank `rank` of `size` of it.
  std::vector<int64_t> block(int64_t number, int rank, int size) const;
  /// How many samples the fullest rank has: all ranks run as many micro-batches as it needs.
  int64_t largest_block(int64_t number, int size) const;

  /// Where the sample at `position` of an epoch is found: a permutation of all samples, by a
  /// Feistel network on the bits of the position; what falls outside walks on until it is inside.
  int64_t sample_at(int64_t epoch, int64_t position) const;

 private:
  Part positions(int64_t number) const;

  uint64_t seed_;
  int64_t samples_, global_batch_;
  int half_bits_;
};

}  // namespace trireme::data
