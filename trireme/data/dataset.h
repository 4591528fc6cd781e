#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::data {

/// One training example: an input and its target.
struct Sample {
  at::Tensor input, target;
};

/// Numbered samples. A dataset of your own implements `size` and `get`; the order, the split over
/// ranks, prefetching and exact resumption come with it. `get` must return the same sample for the
/// same index, and is called on threads of the loader, several at a time if there are several.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample get(int64_t index) const = 0;
  /// The sample as training sees it in an epoch, which comes once in each. Where samples are
  /// changed at random (augmentation), the randomness is a function of a seed and these two, never
  /// of a rank, thread or generator: every mesh sees the same.
  virtual Sample get_in_epoch(int64_t index, int64_t epoch) const {
    (void)epoch;
    return get(index);
  }

  /// Whether the samples come in a random order by themselves, so that they are used as they are
  /// numbered. Otherwise each epoch is shuffled.
  virtual bool is_shuffled() const { return false; }

  /// Identifies the samples without reading all of them, in a few words: "5000 tokens, hash
  /// 0123456789abcdef". A checkpoint stores it, and a run that would continue with other samples is
  /// refused. Empty: only the number of samples is compared.
  virtual std::string identity() const { return ""; }

  /// The entropy of the targets given the inputs, in nats, where it is known: a lower bound of the
  /// expected loss.
  virtual std::optional<double> floor() const { return std::nullopt; }
};

}  // namespace trireme::data
