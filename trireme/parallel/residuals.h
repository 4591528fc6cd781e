#pragma once

#include <map>

#include "trireme/parallel/reducer.h"

namespace trireme::parallel {

/// Error feedback: what this rank has not sent yet, for every element of its gradients.
///
///   step t      now ── x ratio ──> next ── + gradient ── encode ──> bytes
///                                  next <── what the bytes do not say
///   end         the update was made:  now and next change places
///               it was not:           next is dropped, as if the step had never been
///
/// A gradient is a sum, of a weight (tokens) that changes from step to step, times a loss scale. A
/// residual therefore has a unit, the weight x the loss scale of the step that left it; the next
/// step multiplies it by the ratio of the two units. So the error of a full batch counts as much in
/// a short batch as it did in its own, and nothing is rounded while the unit stays.
///
/// Memory: two tensors as large as all gradients that are compressed.
class Residuals {
 public:
  /// Zeros for a place, unless it has a residual.
  void add(const GradientPlacePtr& place);
  bool empty() const { return kept_.empty(); }

  /// What this step expects of itself; see Reducer.
  void expect(const ExpectedStep& step);
  void end_step(double weight);
  void undo_step();

  /// Takes over what the last step left, if its update was made; false: there is nothing new.
  /// Before a step, and before saving.
  bool settle();
  /// Has the step ended, and its update not been settled?
  bool has_ended() const { return ended_; }
  /// Finds out the unit of this step, which may mean to wait for the sum of weights.
  void fix_divisor() { divisor(); }
  /// Is the weight of this step known to be 0? Nothing is sent then.
  bool weightless();
  /// The residual of a place in this step, flat: read and write it. Undefined if it has none.
  at::Tensor now(const GradientPlace& place);

  /// Updates made so far.
  int64_t steps() const { return steps_; }

  std::vector<ReducerState> states() const;
  core::Json state() const;
  void restore(const core::Json& saved);
  int64_t memory_bytes() const;

 private:
  struct Kept {
    GradientPlacePtr place;
    at::Tensor now, next;
    bool begun = false;
  };
  double divisor();

  std::map<std::string, Kept> kept_;  // by key
  ExpectedStep expected_;
  double divisor_ = -1;  // of this step; below 0: not asked for yet
  double unit_ = 0;      // of `now`; 0: there is none yet
  double next_unit_ = 0;
  bool ended_ = false;
  int64_t steps_ = 0;
};

}  // namespace trireme::parallel
