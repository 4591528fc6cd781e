#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/data/order.h"
#include "trireme/train/event_file.h"
#include "trireme/train/lines_file.h"
#include "trireme/train/progress.h"
#include "trireme/train/run_folder.h"

namespace trireme::train {

/// The folder of a run's checkpoints.
inline std::string checkpoints_of(const config::Config& config) {
  return config.run.dir + "/checkpoints";
}

/// The folder of a run.
///
///   run.dir/config.toml         as resolved
///           metrics.jsonl       one object per step
///           samples.jsonl       where log.samples asks for it
///           events.*            for TensorBoard, where log.tensorboard does
///           checkpoints/        step-00000500/ ...
///           log/rank-0.log      what each rank did, with the time
class RunFiles {
 public:
  /// What becomes of checkpoints that an earlier run has not completed. Others may be at work on
  /// them if this process is a part of a run that was started again.
  enum class Unfinished : uint8_t { Remove, Leave };
  /// Makes the folders. Collective: no rank continues before they exist.
  RunFiles(const config::Config& config, const comm::Communicator& world,
           Unfinished unfinished = Unfinished::Remove);

  std::string checkpoints() const { return checkpoints_of(config_); }

  /// Opens the files of rank 0 and removes the lines after `step`.
  void begin(int64_t step);
  void add(const StepReport& report, const data::Order& order);
  void log(const std::string& what);
  /// The memory of this process, read at most once a second, because reading takes a millisecond.
  int64_t pss_mib();

 private:
  const config::Config& config_;
  std::string folder_;
  int rank_;
  std::optional<RunFolder> lock_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_;
  std::optional<LinesFile> metrics_,
      samples_;  // destroyed before the log, because they may still write to it
  std::optional<EventFile> events_;
  std::chrono::steady_clock::time_point pss_at_{};
  int64_t pss_mib_ = 0;
};

}  // namespace trireme::train
