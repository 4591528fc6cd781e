#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "trireme/config/config.h"
#include "trireme/data/order.h"
#include "trireme/ps/job.h"
#include "trireme/train/progress.h"
#include "trireme/train/run_files.h"

namespace trireme::train {

/// The lines of a run on servers, which the manager writes: metrics.jsonl and what people see. A
/// step's line comes when all its batches are reported, so in the order of the steps.
class ServerLines {
 public:
  /// `goes_on`: whether the manager was started again.
  ServerLines(const config::Config& config, const ps::JobConfig& job, data::Order order,
              std::optional<double> floor, bool goes_on);

  /// See ps::Manager::on_reports: writes the lines that are complete. Returns the first batch that
  /// is in no line.
  ps::Batch write(ps::Batch first, const std::map<ps::Batch, std::string>& reports);
  /// A sentence for people.
  void say(const std::string& sentence);
  /// No lines follow.
  void end();
  /// Nobody reads stdout any more.
  bool is_closed() const { return is_closed_; }
  RunFiles& files() { return files_; }

 private:
  const config::Config& config_;
  const ps::JobConfig& job_;
  data::Order order_;
  std::optional<double> floor_;
  RunFiles files_;
  std::optional<Progress> progress_;
  std::chrono::steady_clock::time_point written_at_;
  bool is_closed_ = false, is_over_ = false;
};

}  // namespace trireme::train
