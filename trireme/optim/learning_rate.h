#pragma once

#include <cstdint>

namespace trireme::optim {

/// The learning rate over the steps of a run.
///
///   lr ┤   ╭──╮
///      │  ╱    ╲          warm-up: linear, step 1 of w has lr / w
///      │ ╱      ╲___      then cosine or a line to final x lr at the last step, or constant
///      └─┴──────────┴── step
struct LearningRateSchedule {
  enum class Kind : uint8_t { Cosine, Linear, Constant };
  Kind kind = Kind::Cosine;
  double peak = 1e-3;
  int64_t warmup = 0, steps = 1;
  double final = 0.1;  ///< of the peak

  /// The learning rate of update `step`, counted from 1.
  double at(int64_t step) const;
};

}  // namespace trireme::optim
