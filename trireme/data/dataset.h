#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trireme/layout/positions.h"

namespace trireme::data {

/// One training example: an input and its target.
struct Sample {
  at::Tensor input, target;
  /// Of a text of several documents that attention keeps apart: int64, for each position of the
  /// input the one at which its document begins.
  at::Tensor documents = {};
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

  /// Some positions of a sequence, for a rank that shares it with others: of get_in_epoch, or, of
  /// no epoch, of get. By default they are picked out of the whole sample.
  virtual Sample get_positions(int64_t index, std::optional<int64_t> epoch,
                               const Positions& positions) const;

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

/// A dataset of which a rank has some positions of each sample.
class PositionsOf : public Dataset {
 public:
  PositionsOf(std::shared_ptr<const Dataset> whole, Positions positions)
      : whole_(std::move(whole)), positions_(std::move(positions)) {}
  int64_t size() const override { return whole_->size(); }
  Sample get(int64_t index) const override {
    return whole_->get_positions(index, std::nullopt, positions_);
  }
  Sample get_in_epoch(int64_t index, int64_t epoch) const override {
    return whole_->get_positions(index, epoch, positions_);
  }
  bool is_shuffled() const override { return whole_->is_shuffled(); }
  std::string identity() const override { return whole_->identity(); }
  std::optional<double> floor() const override { return whole_->floor(); }

 private:
  std::shared_ptr<const Dataset> whole_;
  Positions positions_;
};

}  // namespace trireme::data
