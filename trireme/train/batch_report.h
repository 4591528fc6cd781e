#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trireme/ps/ids.h"
#include "trireme/train/progress.h"

namespace trireme::train {

/// What a worker tells the manager about one batch.
struct BatchReport {
  /// Sums over the batch; in lockstep over those of all workers, as the servers have added them up:
  /// a worker that repeats a batch computes it with newer weights.
  double loss = 0, weight = 0;
  double grad_norm = 0;  ///< of the batch; in lockstep of the step
  double lr = 0, data_ms = 0;
  int64_t missed = 0;     ///< updates between the read and the push
  bool repeated = false;  ///< another worker had done the batch
  int64_t pss_mib = 0;
  double sent_mib = 0;
  std::optional<double> eval_loss = {}, eval_accuracy = {};

  std::string to_text() const;
  /// Throws Error for another text.
  static BatchReport parse(const std::string& text);
};

/// The line of a step from the reports of all its batches, which `batches` of the job have, first
/// to last. Times are the caller's.
StepReport step_of(int64_t step, const std::map<ps::Batch, std::string>& reports, ps::Batch first,
                   uint32_t batches, bool lockstep);

}  // namespace trireme::train
