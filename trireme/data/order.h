#pragma once

#include <cstdint>
#include <vector>

#include "trireme/layout/even_range.h"

namespace trireme::data {

class Dataset;

/// The order of samples: a function of (seed, epoch, position), the same for every world size, so
/// that a run can resume at any step without reading ahead.
///
///   Batch b of an epoch has positions [b G, b G + G). Batches never cross epochs; the last one
///   may be short. Ranks take contiguous blocks of a batch, as even as possible, possibly empty.
class Order {
 public:
  Order(uint64_t seed, int64_t samples, int64_t global_batch);
  /// Of a dataset that is shuffled already: the samples as they are numbered.
  Order(uint64_t seed, const Dataset& dataset, int64_t global_batch);

  int64_t batches_per_epoch() const;
  int64_t epoch_of(int64_t number) const { return number / batches_per_epoch(); }
  /// The samples, over all epochs, of the batches before this one.
  int64_t samples_before(int64_t number) const;
  /// How many batches are complete after so many samples.
  int64_t batches_in(int64_t samples) const;

  /// The samples of batch `number`, counted from 0 over all epochs.
  std::vector<int64_t> batch(int64_t number) const;
  /// The samples of that batch that rank `rank` of `size` takes.
  std::vector<int64_t> block(int64_t number, int rank, int size) const;
  /// The samples of the rank that has the most: all ranks run as many micro-batches as it needs.
  int64_t largest_block(int64_t number, int size) const;
  /// The samples of the rank that has the fewest; 0 if a rank has nothing to do.
  int64_t smallest_block(int64_t number, int size) const;

  /// The sample at `position` of an epoch. A permutation of all samples for each epoch.
  int64_t sample_at(int64_t epoch, int64_t position) const;

 private:
  Range positions(int64_t number) const;

  uint64_t seed_;
  int64_t samples_, global_batch_;
  int half_bits_;
  bool shuffles_ = true;
};

}  // namespace trireme::data
