#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::data {

/// What a model learns from: an input, and what it should say to it.
struct Sample {
  at::Tensor input, target;
};

/// Numbered samples. One of your own writes `size` and `get`, and gets the order, the cut over
/// ranks, prefetching and exact resumption with it. `get` must give the same for the same number,
/// and is called on a thread of the loader's.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample get(int64_t index) const = 0;

  /// What tells these samples from others without reading all of them, in a few words: "5000
  /// tokens, hash 0123456789abcdef". A checkpoint keeps it, and a run that would go on with other
  /// samples is refused. Empty: only the number of samples is compared.
  virtual std::string identity() const { return ""; }

  /// The entropy of the targets given the inputs, in nats, where it is known: no loss can stay
  /// below it.
  virtual std::optional<double> floor() const { return std::nullopt; }
};

}  // namespace trireme::data
