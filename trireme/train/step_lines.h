#pragma once

#include <optional>
#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/train/progress.h"
#include "trireme/train/run_files.h"
#include "trireme/train/stop_signals.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// Puts the result of a step into its report.
void fill(StepReport& report, const StepResult& result);

/// The lines of a run, between `begin` and `end`: for programs in metrics.jsonl, for people on
/// stdout. Rank 0 writes them; on the others nothing happens.
class StepLines {
 public:
  StepLines(RunFiles& files, comm::Communicator world, const StopSignals& signals);

  /// From step `first` of `steps`, people see every `log.every`th.
  void begin(int64_t first, int64_t steps, const config::Config& config);
  /// Asks the run to stop if nobody reads stdout any more.
  void write(StepReport report, const data::Order& order);
  /// A sentence for people.
  void say(const std::string& sentence);
  void end() { progress_.reset(); }

  /// MiB that this rank has sent since it was last asked.
  double take_sent_mib();

 private:
  RunFiles& files_;
  comm::Communicator world_;
  const StopSignals& signals_;
  std::optional<Progress> progress_;
  int64_t sent_bytes_ = 0;  // when it was last asked
};

}  // namespace trireme::train
