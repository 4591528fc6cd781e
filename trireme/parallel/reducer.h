#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/op.h"
#include "trireme/layout/rank_set.h"
#include "trireme/mesh/mesh.h"

namespace trireme::parallel {

/// Gradients that are summed by one operation: in place on every rank of a set, or so that each
/// rank gets its rows of the sum.
struct GradientBlock {
  std::string name = {};                ///< for messages and traces
  at::Tensor data = {};                 ///< summed in place, or:
  std::vector<at::Tensor> whole = {};   ///< what is summed ...
  std::vector<at::Tensor> shards = {};  ///< ... of which this rank gets its rows, in here
  std::vector<comm::Rows> rows = {};    ///< of each tensor, the rows of every rank
};

/// A tensor that a reducer keeps for a parameter from step to step, such as the error that a
/// compressor feeds back. It has the shape of the rank's own part of the parameter, belongs to this
/// rank alone and is saved with the checkpoint.
struct ReducerState {
  std::string kind;
  std::string parameter;
  at::Tensor tensor;
};

/// The one door through which gradients travel. Whoever sums gradients in another way derives from
/// it; buckets, copies and tied weights all come through here.
class Reducer {
 public:
  explicit Reducer(const Mesh& mesh) : mesh_(mesh) {}
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Starts to sum a block over the ranks of a set. All of them start the same blocks in the same
  /// order. The block's memory must live until the work is done.
  virtual comm::Work start(GradientBlock block, const RankSet& over) = 0;

  /// What it keeps from step to step; loading a checkpoint fills the tensors.
  virtual std::vector<ReducerState> states() { return {}; }

  /// The group of a set, where gradients may be allocated as registered memory. The first call for
  /// a set of copies makes the group and is collective over the tensor axis, for a set of holders
  /// over the pipe axis.
  const comm::Communicator& group(const RankSet& set);

 private:
  Mesh mesh_;
  std::map<RankSet, comm::Communicator> made_;
};

/// Sums by one collective a block.
std::shared_ptr<Reducer> make_reducer(const Mesh& mesh);

/// Several tensors that are summed over the same ranks. Large ones are summed where they lie; small
/// ones, and those that are not contiguous, travel as one, since every operation has its latency.
class PackedSum {
 public:
  PackedSum(Reducer& reducer, RankSet over) : reducer_(&reducer), over_(std::move(over)) {}

  /// Starts to sum the tensors in place.
  void start(const std::vector<at::Tensor>& tensors);
  /// Waits until all sums are in their tensors.
  void wait();

 private:
  Reducer* reducer_;
  RankSet over_;
  std::vector<comm::Work> works_;
  std::map<at::ScalarType, std::pair<at::Tensor, std::vector<at::Tensor>>> packed_;
};

}  // namespace trireme::parallel
