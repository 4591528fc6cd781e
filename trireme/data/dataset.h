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
/// same index, and is called on a thread of the loader.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample get(int64_t index) const = 0;

  /// Identifies the samples without reading all of them, in a few words: "5000 tokens, hash
  /// 0123456789abcdef". A checkpoint stores it, and a run that would continue with other samples is
  /// refused. Empty: only the number of samples is compared.
  virtual std::string identity() const { return ""; }

  /// The entropy of the targets given the inputs, in nats, where it is known: a lower bound of the
  /// expected loss.
  virtual std::optional<double> floor() const { return std::nullopt; }
};

}  // namespace trireme::data
