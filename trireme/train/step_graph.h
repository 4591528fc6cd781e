#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/config/config.h"
#include "trireme/cuda/graph.h"
#include "trireme/data/loader.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"
#include "trireme/train/attach.h"

namespace trireme::train {

/// Repeats the steps of a GPU as one CUDA graph, so that the host issues one call instead of about
/// a thousand. The first few steps run as usual: they choose algorithms, compile kernels and settle
/// the order of gradients. Then one step is recorded, and replayed from there on with new inputs:
///
///   step        1      2      3      4                5       6
///   host     issue  issue  issue  record, replay   replay  replay
///   batch                         copied into the memory that the recorded step reads
///
/// Over several ranks a replay contains their collectives, and `Attached::close_steps` keeps those
/// of one step inside it. A batch with another number of rows (the short last one of an epoch) runs
/// as usual.
class StepGraph {
 public:
  StepGraph(const config::Config& config, const Mesh& mesh, const nn::ModelImpl& model,
            const AttachOptions& options);

  /// Why steps are not recorded; empty if they are.
  const std::string& obstacle() const { return obstacle_; }

  /// Whether the next step, with this batch, can be a replay. Counts the steps.
  bool takes(const data::Batch& batch);

  /// Runs a step that `takes` has accepted. `issue` issues the whole step for a batch and returns
  /// the numbers that it ends with; it is called once. Returns the same numbers.
  /// Throws, with the remedy, if the step cannot be recorded. Collective: a replay is one op to the
  /// other ranks.
  at::Tensor run(const data::Batch& batch,
                 const std::function<at::Tensor(const data::Batch&)>& issue);

  /// Whether the last `run` called `issue`.
  bool recorded_now() const { return recorded_now_; }

 private:
  comm::Communicator world_;
  c10::Device device_;
  std::string obstacle_;
  int usual_ = 0;      // steps in a row that ran as usual, with batches of as many rows
  int64_t rows_ = -1;  // of these batches
  bool recorded_now_ = false;
  std::optional<data::Batch> inputs_;  // the memory that the recorded step reads
  at::Tensor numbers_;
  comm::Work replayed_;                 // the last one
  std::unique_ptr<cuda::Graph> graph_;  // last: it ends before the memory that it uses
};

}  // namespace trireme::train
