#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/history.h"
#include "sim/scenario.h"
#include "trireme/ps/client_node.h"

namespace trireme::sim {

/// The gradient that the weights table is trained with: a function of the batch and the weights.
std::vector<double> gradient_of(ps::Batch batch, const std::vector<double>& weights);
double weight_of(ps::Batch batch);

/// A worker: asks for a task; for each of its batches pulls, computes for a while, pushes.
class SimWorker final : public ps::ClientNode {
 public:
  SimWorker(uint32_t index, const Scenario& scenario, ps::Environment& environment,
            History& history, uint64_t& repeated);
  void tick() override;
  /// Whether it was told that all work is done, and has read the tables once more.
  bool has_ended() const { return ended_; }

 private:
  void ask(std::optional<ps::Task> done);
  void on_task(const ps::TaskReply& reply);
  void pull();
  void on_pulled();
  void push();
  void on_pushed();
  Operation operation(ps::TableId table) const;
  Operation push_of(ps::TableId table) const;
  ps::Clock clock() const { return first_clock_ + step_; }
  void write_down_read();
  void check_totals(ps::TableId table, ps::Clock clock, const Result& result) const;
  void read_the_end();

  const Scenario& scenario_;
  History& history_;
  uint64_t& repeated_;
  ps::Task task_ = 0;
  std::vector<ps::Batch> batches_;
  size_t step_ = 0;
  ps::Clock first_clock_ = 0;
  uint64_t task_view_ = 0;
  size_t open_ = 0;  ///< operations without an answer yet
  std::map<ps::TableId, std::string> pulled_;
  Time began_{};
  size_t write_ = 0;  ///< the present one in the history
  std::optional<Time> compute_until_, ask_at_;
  bool ended_ = false;
};

}  // namespace trireme::sim
