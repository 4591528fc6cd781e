#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace trireme::train {

/// The result of a step, as in metrics.jsonl.
struct StepReport {
  int64_t step = 0;
  double loss = 0, weight = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0, step_ms = 0, data_ms = 0;
  int64_t pss_mib = 0;
  std::optional<double> floor, eval_loss, eval_accuracy;
  bool skipped = false;
  std::optional<int64_t> gpu_mib;  ///< the most that libtorch has taken from the GPU so far
  std::optional<double> loss_scale;
  std::optional<double> sent_mib;  ///< what this rank sent to others since the line before
  /// After a meeting of replicas that train on their own: the loss of all of them since the last
  /// one, how far apart they were, and how long this rank waited.
  std::optional<double> block_loss, drift, meeting_ms;
  /// On servers: how many batches another worker had done already; how many pushes missed how many
  /// updates.
  std::optional<int64_t> repeated = {};
  std::optional<std::map<int64_t, int64_t>> staleness = {};
  std::string experts =
      {};  ///< how the experts of a mixture were used, in JSON; empty: there are none

  /// One line; each number in the shortest form that reads back the same.
  std::string to_json() const;
};

/// Shows a person how training goes: a line every `every` steps and for every evaluation; on a
/// terminal, a bar below the lines.
class Progress {
 public:
  /// `unit`: of the speed, such as "tokens".
  Progress(int64_t first, int64_t steps, int64_t every, std::string unit);
  ~Progress();
  void show(StepReport report);
  /// Prints a sentence above the bar.
  void say(const std::string& sentence);

  /// True if stdout is a pipe whose reader has closed it.
  bool is_closed() const { return closed_; }

 private:
  double seconds_left(int64_t step) const;
  std::string line_of(const StepReport& report) const;
  std::string bar_of(const StepReport& report) const;
  void print(const std::string& line, const std::string& bar);

  int64_t first_, steps_, every_;
  std::string unit_;
  double weight_ = 0, step_ms_ = 0;  ///< of the steps since the last line
  bool terminal_, closed_ = false;
  std::string bar_;  ///< as it is on the terminal now
  std::chrono::steady_clock::time_point began_, drawn_;
};

/// The bar for a terminal of `columns` columns. If it is too long, the bar itself shrinks first;
/// then the floor, tokens/s and the time left are dropped, in this order.
///
///     [=======>          ] 812/1200  loss 3.6012 (floor 3.5325)  58.2k tokens/s  0:12 left
std::string draw_bar(const StepReport& report, int64_t steps, double seconds_left, int columns,
                     const std::string& unit);

}  // namespace trireme::train
