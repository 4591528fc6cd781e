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

/// Gradients that one operation sums: in place on every rank of a set, or so that each rank gets
/// its rows of the sum.
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

/// Sums gradients over ranks. Buckets, copies of a box and tied weights are all summed through this
/// class; derive from it to sum them in another way, for instance compressed.
///
///   buckets   ──┐
///   copies    ──┼──> Reducer::start(block, ranks) ──> all-reduce or reduce-scatter
///   tied      ──┘
class Reducer {
 public:
  explicit Reducer(const Mesh& mesh) : mesh_(mesh) {}
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Starts to sum a block over the ranks of a set. All of them start the same blocks in the same
  /// order. The block's memory must live until the work is done.
  virtual comm::Work start(GradientBlock block, const RankSet& over) = 0;

  /// The tensors that it keeps from step to step; loading a checkpoint fills them.
  virtual std::vector<ReducerState> states() { return {}; }

  /// The group of a set; gradients may be allocated there as registered memory. The first call for
  /// a set makes its group: it is collective over the tensor axis for a set of copies, and over the
  /// pipe axis for a set of holders.
  const comm::Communicator& group(const RankSet& set);

 private:
  Mesh mesh_;
  std::map<RankSet, comm::Communicator> made_;
};

/// Sums each block by one collective.
std::shared_ptr<Reducer> make_reducer(const Mesh& mesh);

/// Sums several tensors over the same ranks. Large ones are summed in place. Small ones, and those
/// that are not contiguous, are packed into one operation, because every operation costs its
/// latency.
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
