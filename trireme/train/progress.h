#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::train {

/// What a step came to, as metrics.jsonl has it.
struct StepReport {
  int64_t step = 0;
  double loss = 0, weight = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0, step_ms = 0, data_ms = 0;
  int64_t pss_mib = 0;
  std::optional<double> floor, eval_loss;

  /// One line, numbers in their shortest form that reads back the same.
  std::string to_json() const;
};

/// Tells a person how training goes: a bar on a terminal, else a line every so many steps.
class Progress {
 public:
  Progress(int64_t first, int64_t steps, int64_t every);
  ~Progress();
  void show(const StepReport& report);
  /// A sentence of its own; the bar stands below it.
  void say(const std::string& sentence);

 private:
  std::string text_of(const StepReport& report) const;

  int64_t first_, steps_, every_;
  bool terminal_, bar_ = false;
  std::chrono::steady_clock::time_point began_, drawn_;
};

}  // namespace trireme::train
