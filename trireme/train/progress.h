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

/// Tells a person how training goes: a line every so many steps and for every evaluation; on a
/// terminal, a bar below them.
class Progress {
 public:
  Progress(int64_t first, int64_t steps, int64_t every);
  ~Progress();
  void show(const StepReport& report);
  /// A sentence of its own, above the bar.
  void say(const std::string& sentence);

  /// Nobody reads what is shown any more: stdout is a pipe whose reader has gone.
  bool is_closed() const { return closed_; }

 private:
  double seconds_left(int64_t step) const;
  std::string line_of(const StepReport& report) const;
  std::string bar_of(const StepReport& report) const;
  void print(const std::string& line, const std::string& bar);

  int64_t first_, steps_, every_;
  bool terminal_, closed_ = false;
  std::string bar_;  ///< as it stands on the terminal
  std::chrono::steady_clock::time_point began_, drawn_;
};

/// The bar for a terminal of so many columns. The bar itself shrinks first; then goes what matters
/// least: the floor, tokens/s, the time left.
///
///     [=======>          ] 812/1200  loss 3.6012 (floor 3.5325)  58.2k tokens/s  0:12 left
std::string draw_bar(const StepReport& report, int64_t steps, double seconds_left, int columns);

}  // namespace trireme::train
