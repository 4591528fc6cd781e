#include "trireme/train/step_lines.h"

#include <signal.h>

#include <utility>

namespace trireme::train {

void fill(StepReport& report, const StepResult& result) {
  report.loss = result.loss;
  report.weight = result.weight;
  report.grad_norm = result.grad_norm;
  report.lr = result.lr;
  report.skipped = result.skipped;
  report.loss_scale = result.loss_scale;
  if (!result.experts.empty()) report.experts = to_json(result.experts);
  if (!result.meeting) return;
  report.block_loss = result.meeting->loss / result.meeting->weight;
  report.drift = result.meeting->drift;
  report.meeting_ms = result.meeting->wait_ms;
}

StepLines::StepLines(RunFiles& files, comm::Communicator world, const StopSignals& signals)
    : files_(files), world_(std::move(world)), signals_(signals) {}

void StepLines::begin(int64_t first, int64_t steps, const config::Config& config) {
  if (world_.rank() == 0) progress_.emplace(first, steps, config.log.every, config.model.counted());
  take_sent_mib();
}

void StepLines::write(StepReport report, const data::Order& order) {
  if (!progress_) return;
  report.pss_mib = files_.pss_mib();
  files_.add(report, order);
  progress_->show(report);
  if (progress_->is_closed()) signals_.stop_by(SIGPIPE);
}

void StepLines::say(const std::string& sentence) {
  if (progress_) progress_->say(sentence);
}

double StepLines::take_sent_mib() {
  const int64_t now = world_.traffic().sent_bytes;
  return static_cast<double>(now - std::exchange(sent_bytes_, now)) / (1 << 20);
}

}  // namespace trireme::train
