#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/op.h"
#include "trireme/core/json.h"
#include "trireme/layout/rank_set.h"
#include "trireme/mesh/mesh.h"
#include "trireme/parallel/gradient_place.h"

namespace trireme::parallel {

/// A gradient in a block.
struct BlockMember {
  GradientPlacePtr place;
  int64_t begin = 0;  ///< its first element in `GradientBlock::data`
};

/// Gradients that one operation sums: in place on every rank of a set, or so that each rank gets
/// its rows of the sum.
struct GradientBlock {
  std::string name = {};                ///< for messages and traces
  at::Tensor data = {};                 ///< summed in place, or:
  std::vector<at::Tensor> whole = {};   ///< what is summed ...
  std::vector<at::Tensor> shards = {};  ///< ... of which this rank gets its rows, in here
  std::vector<comm::Rows> rows = {};    ///< of each tensor, the rows of every rank
  /// The dtype in which it travels; gradients are rounded to it and back. None: as they are.
  std::optional<core::DType> wire = {};
  int lane = 0;  ///< from `Reducer::open_lane`
  /// What lies where: in `data`, or one for each tensor of `whole`. Empty: the block must travel as
  /// it is (late gradients, copies of a box, tied weights: sums of what was sent already).
  std::vector<BlockMember> members = {};
};

/// A started sum of gradients.
class [[nodiscard]] StartedSum {
 public:
  StartedSum() = default;
  /// `then` runs after the work, in `wait`: for a sum that travels in another form.
  StartedSum(comm::Work work, std::function<void()> then = {})  // NOLINT: meant to convert
      : then_(std::move(then)), work_(std::move(work)) {}

  void wait() {
    work_.wait();
    if (const auto then = std::exchange(then_, {})) then();
  }

 private:
  std::function<void()> then_;  // keeps tensors that the work uses
  comm::Work work_;
};

/// A tensor that a reducer keeps from step to step, such as the error that a compressor feeds back.
/// It belongs to this rank alone and is saved with the checkpoint.
struct ReducerState {
  std::string kind;
  std::string parameter;
  at::Tensor tensor;
  /// Set if its elements belong to those of a parameter and the ranks' tensors add up: on another
  /// mesh the sum over the ranks is kept. Otherwise another mesh starts without it.
  std::optional<Piece> piece = {};
  bool first = true;     ///< see GradientPlace
  bool repeats = false;  ///< another rank has the same
};

/// What is known of a step before its gradients come.
struct ExpectedStep {
  std::function<double()> weight = {};  ///< the total weight, over all ranks; may wait for it
  double loss_scale = 1;                ///< what losses are multiplied by
};

/// Sums gradients over ranks. Buckets, copies of a box and tied weights are all summed through this
/// class; derive from it to sum them in another way, for instance compressed.
///
///   buckets   ──┐
///   copies    ──┼──> Reducer::start(block, ranks) ──> all-reduce or reduce-scatter
///   tied      ──┘
class Reducer {
 public:
  explicit Reducer(const Mesh& mesh);
  /// For a reducer that changes blocks and passes them on to `inner`: both use the same groups.
  explicit Reducer(const std::shared_ptr<Reducer>& inner) : groups_(inner->groups_) {}
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Starts to sum a block over the ranks of a set. All of them start the same blocks of a lane in
  /// the same order. The block's memory must live until the work is done.
  virtual StartedSum start(GradientBlock block, const RankSet& over) = 0;

  /// Blocks will hold gradients of these places, and be summed over these ranks. Collective over
  /// them.
  virtual void announce(const std::vector<GradientPlacePtr>& /*places*/, const RankSet& /*over*/,
                        int /*lane*/) {}

  /// A step begins. A training loop that does not call it expects the weight of the step before.
  virtual void expect(const ExpectedStep& /*step*/) {}
  /// All sums of the step are there; `weight`: its total weight, NaN if only the device knows it.
  virtual void end_step(double /*weight*/) {}
  /// The update of the step that has ended is not made: its gradients are lost.
  virtual void undo_step() {}
  /// The step that is under way is given up before its end.
  virtual void drop_step() {}

  /// What it has to say since the last call: lines for whoever watches the run.
  virtual std::string take_news() { return {}; }

  /// The tensors that it keeps from step to step; loading a checkpoint fills them.
  virtual std::vector<ReducerState> states() { return {}; }
  /// What else a checkpoint must hold; the same on every rank. Null: nothing.
  virtual core::Json state() { return nullptr; }
  virtual void restore(const core::Json& /*saved*/) {}

  /// The group of a set; gradients may be allocated there as registered memory. The first call for
  /// a set makes its group: it is collective over the tensor axis for a set of copies, over the
  /// pipe axis for a set of holders, and over the set's axes for the ranks with the same experts.
  const comm::Communicator& group(const RankSet& set, int lane = 0);

  /// A lane of its own over the ranks of a set: blocks of different lanes may be started in
  /// different orders on different ranks. (Buckets that wait for a gradient fall behind those of
  /// another set.) Collective over the ranks of the set.
  int open_lane(const RankSet& set);

 private:
  class Groups;
  std::shared_ptr<Groups> groups_;
};

/// Sums each block by one collective.
std::shared_ptr<Reducer> make_reducer(const Mesh& mesh);

/// Sums several tensors over the same ranks. Large ones are summed in place. Small ones, and those
/// that are not contiguous, are packed into one operation, because every operation costs its
/// latency.
class PackedSum {
 public:
  PackedSum(Reducer& reducer, RankSet over, core::DType wire, int lane = 0)
      : reducer_(&reducer), over_(std::move(over)), wire_(wire), lane_(lane) {}

  /// Starts to sum the tensors in place. `places`: of each; without them they travel as they are.
  void start(const std::vector<at::Tensor>& tensors,
             const std::vector<GradientPlacePtr>& places = {});
  /// Waits until all sums are in their tensors.
  void wait();

 private:
  Reducer* reducer_;
  RankSet over_;
  core::DType wire_;
  int lane_;
  std::vector<StartedSum> works_;
  std::map<at::ScalarType, std::pair<at::Tensor, std::vector<at::Tensor>>> packed_;
};

}  // namespace trireme::parallel
