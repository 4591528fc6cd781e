#include "trireme/train/server_lines.h"

#include <signal.h>

#include <cstdio>

#include "trireme/mesh/mesh.h"
#include "trireme/train/batch_report.h"

namespace trireme::train {

namespace {

using Clock = std::chrono::steady_clock;

bool has_all(const std::map<ps::Batch, std::string>& reports, ps::Batch first, uint32_t count) {
  const auto begin = reports.find(first), end = reports.lower_bound(first + count);
  return begin != reports.end() && std::distance(begin, end) == static_cast<std::ptrdiff_t>(count);
}

}  // namespace

ServerLines::ServerLines(const config::Config& config, const ps::JobConfig& job, data::Order order,
                         std::optional<double> floor, bool goes_on)
    : config_(config),
      job_(job),
      order_(order),
      floor_(floor),
      files_(config, mesh_of_one().world(),
             goes_on ? RunFiles::Unfinished::Leave : RunFiles::Unfinished::Remove),
      written_at_(Clock::now()) {}

/// A manager that was started again learns from the first report what is written already. Batches
/// of several steps may become complete together: each step has then taken its share of the time.
ps::Batch ServerLines::write(ps::Batch first, const std::map<ps::Batch, std::string>& reports) {
  if (is_over_) return first;
  const auto now = Clock::now();
  if (!progress_) {
    const auto step_before = static_cast<int64_t>(first / job_.workers);
    files_.begin(step_before);
    progress_.emplace(step_before, static_cast<int64_t>(job_.batches() / job_.workers),
                      config_.log.every, config_.model.counted());
    written_at_ = now;
  }
  std::vector<StepReport> lines;
  for (; has_all(reports, first, job_.workers); first += job_.workers)
    lines.push_back(step_of(static_cast<int64_t>(first / job_.workers) + 1, reports, first,
                            job_.workers, job_.in_lanes()));
  if (lines.empty()) return first;
  const double step_ms = std::chrono::duration<double, std::milli>(now - written_at_).count() /
                         static_cast<double>(lines.size());
  written_at_ = now;
  for (StepReport& line : lines) {
    line.step_ms = step_ms;
    line.tokens_per_s = step_ms > 0 ? line.weight / step_ms * 1e3 : 0;
    line.floor = floor_;
    files_.add(line, order_);
    progress_->show(line);
  }
  if (progress_->is_closed() && !std::exchange(is_closed_, true))
    ::raise(SIGTERM);  // the manager ends the job early
  return first;
}

void ServerLines::end() {
  is_over_ = true;
  progress_.reset();
}

void ServerLines::say(const std::string& sentence) {
  files_.log(sentence);
  if (progress_)
    progress_->say(sentence);
  else
    std::fprintf(stdout, "%s\n", sentence.c_str());
  std::fflush(stdout);
}

}  // namespace trireme::train
