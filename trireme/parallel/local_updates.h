#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/parallel/compressed_reducer.h"
#include "trireme/parallel/outer_optimizer.h"
#include "trireme/parallel/parameter_shard.h"

namespace trireme::parallel {

/// A mesh whose replicas train on their own for a while. Each replica is a mesh by itself: a model
/// that is attached to it does not know of the others.
///
///   mesh         replica 4 x tensor 2, inner_group 2
///   replica      {0 1 2 3} {4 5 6 7}              replica 2 x tensor 2: lockstep inside
///   meeting      {0 4} {1 5} {2 6} {3 7}          the ranks that hold the same parts
struct ReplicaMeshes {
  Mesh replica;  ///< this rank's
  Mesh meeting;  ///< its replica axis: this rank's counterparts in all replicas

  int count() const { return meeting.size(Axis::Replica); }
  int index() const { return meeting.coord(Axis::Replica); }
};

/// `inner_group`: so many neighbours along the replica axis stay in lockstep, and count as one
/// replica; those of a host, for instance. Throws ConfigError if it does not divide the axis.
/// Collective.
ReplicaMeshes split_replicas(const Mesh& mesh, int inner_group = 1);

struct LocalOptions {
  std::shared_ptr<const OuterOptimizer> outer = make_averaging();
  int64_t every = 1;      ///< steps between two meetings
  int64_t fragments = 1;  ///< parts of the model that meet in turn
  int64_t delay = 0;      ///< steps between the meeting of a fragment and its use
  /// With a delay: how much of its own weights a replica keeps when the common ones arrive
  /// (Douillard et al. 2025: 0.5).
  double keep_own = 0.5;
  double expected_weight = 1;     ///< about the weight of a replica's block; the same on all ranks
  CompressOptions compress = {};  ///< of what travels in a meeting
};

/// The result of a meeting, over all replicas.
struct Meeting {
  double loss = 0, weight = 0;  ///< of all steps since the last meeting; sums
  double drift = 0;    ///< root of the mean squared distance of the replicas from their mean
  double stop = 0;     ///< the sum of the wishes to stop
  double wait_ms = 0;  ///< how long this rank waited for it
};

/// Lets replicas train on their own and brings them together every few steps.
///
///   inner steps     W1 ──> W1' ──> W1''  ┐
///   start x ──────┤                      ├─ mean y, weighted by tokens ── OuterOptimizer ──> next
///   x
///                   W2 ──> W2' ──> W2''  ┘
///
/// What travels is d = W - x, times the weight that the replica counted. A model of several
/// fragments lets them meet in turn; with a delay a fragment's sum is under way while the next
/// inner steps run (streaming DiLoCo):
///
///   step         1   2   3   4   5   6   7   8          every 4, two fragments, delay 1
///   fragment 0   .   .   .   S───A   .   .   S──        S: the sum starts
///   fragment 1   .   S───A   .   .   S───A   .          A: the result is used
///
/// Inner optimizer states stay with their replica.
class LocalUpdates {
 public:
  /// `shards`: of the model that is attached to `meshes.replica`. They must have the same values in
  /// all replicas: the first starting point. Throws ConfigError if the options do not fit.
  LocalUpdates(ReplicaMeshes meshes, std::vector<ParameterShard> shards, LocalOptions options);
  /// Waits for the sums that are under way: the other replicas need this rank's part of them.
  ~LocalUpdates();

  /// A step of the inner optimizer.
  struct Step {
    int64_t number = 0;      ///< counted from 1
    at::Tensor totals = {};  ///< its weight and loss in this replica, float64
    double samples = 0;      ///< of all replicas, divided by their number
    /// One number, not 0 if the optimizer skipped the step: the replica did not move, so the step
    /// counts for nothing. Undefined: 0.
    at::Tensor skipped = {};
    double rate = 0;  ///< the inner learning rate
    double stop = 0;  ///< this rank's wish to stop; a meeting adds them up
  };
  /// Counts a step, and meets if it is time. A result means that the masters have new values.
  /// Collective over the replica; over all replicas if it is time.
  std::optional<Meeting> end_step(const Step& step);

  /// Meets now, with all fragments, whatever the step: for blocks that end by the clock.
  Meeting meet(const Step& step);

  /// Puts the common starting point into the masters as long as the object lives, for evaluation.
  class CommonWeights {
   public:
    explicit CommonWeights(const LocalUpdates& local);
    ~CommonWeights();
    CommonWeights(const CommonWeights&) = delete;
    CommonWeights& operator=(const CommonWeights&) = delete;

   private:
    const LocalUpdates& local_;
    std::vector<at::Tensor> own_;
  };

  const ReplicaMeshes& meshes() const { return meshes_; }
  const std::vector<ParameterShard>& shards() const { return shards_; }
  const OuterOptimizer& outer() const { return *options_.outer; }

  /// A tensor that all replicas have alike, of the shape of a shard's master.
  struct CommonTensor {
    std::string prefix;  ///< of the parameter's name, in a checkpoint
    std::size_t shard;
    at::Tensor tensor;
    bool optional = false;  ///< a checkpoint may lack it
  };
  /// The starting point, what the outer optimizer remembers and the sums of fragments under way,
  /// for which it waits. `Purpose::Load`: also those that only a checkpoint may have.
  enum class Purpose : uint8_t { Save, Load };
  std::vector<CommonTensor> common(Purpose purpose);

  /// What compression chose since the last call, as lines.
  std::string take_news();

  /// The tensors that belong to this rank alone: what was not sent yet, if meetings are compressed,
  /// as weight x move x the `unit` of the reducer's JSON; of kind `kUnsent`, as weight x move.
  /// `repeats`: another rank of the replica has it too. `Purpose::Load`: also for shards that
  /// travel as they are, which send it all when they next meet.
  std::vector<ReducerState> own_states(Purpose purpose);
  static constexpr const char* kUnsent = "unsent";

  /// What else is the same in all replicas, and what each has for itself.
  core::Json common_json();
  core::Json own_json();
  void restore(const core::Json& common, const core::Json& own);

  /// Was a replica cut in the same way, and the same of it compressed, when this was saved? Then
  /// `own_states` continue as they are, if none is of kind `kUnsent`.
  bool is_cut_as(const core::Json& common) const { return common.value("cut", "") == cut_; }
  /// Otherwise they have been filled with weight x move; `saved`: what a rank's reducers kept.
  void restart_residuals(const core::Json& saved);

  /// What the replicas of a checkpoint had counted for a parameter since it last met.
  struct Counted {
    double weight = 0;
    Block block = {};
  };
  /// After loading the replicas of another number: the starting point moves as in a meeting where
  /// the replicas had ended at these means, and all replicas begin there. A parameter that had just
  /// met stays where it is.
  void restart_from(const std::vector<at::Tensor>& means,
                    const std::function<Counted(const std::string& name)>& counted);
  /// Forgets what was counted, remembered and under way.
  void clear();

  /// Throws if the replicas have different starting points. Collective.
  void check_same() const;
  /// All replicas begin at what the masters hold now.
  void restart();

 private:
  static constexpr int64_t kTotals = 6, kCounted = 3, kStop = 3, kSquares = 4, kRates = 5;
  struct Flight {      // a sum under way
    int64_t step = 0;  // when it started
    /// Over all replicas: weight, loss and samples of the block, wishes to stop, this rank's part
    /// of weight x squared distance from the start, and weight x learning rate.
    at::Tensor totals;
    comm::Work totals_work;
    StartedSum sum = {}, plain_sum = {};
    bool arrived = false;
  };
  struct Fragment {
    std::vector<std::size_t> shards;
    std::size_t num_plain = 0;         // the last of them: they travel as they are
    int64_t compressed_elems = 0;      // those of the others
    std::shared_ptr<Reducer> reducer;  // one each: their sums overlap in time
    std::vector<BlockMember> members;
    at::Tensor flat;                // what the replicas moved; then its sum
    std::vector<at::Tensor> moved;  // the same, shard by shard
    at::Tensor counted;             // weight, loss and samples since its last meeting
    std::optional<Flight> flight;
  };

  void cut_into_fragments();
  void lay_out(Fragment& fragment) const;
  GradientPlacePtr place_of(std::size_t shard) const;
  bool is_due(std::size_t fragment, int64_t step) const;
  void start(Fragment& fragment, const Step& step);
  void wait(Fragment& fragment) const;
  void apply(Fragment& fragment, Meeting& meeting, double keep_own);
  at::Tensor squares_of(const Fragment& fragment) const;

  ReplicaMeshes meshes_;
  std::vector<ParameterShard> shards_;
  LocalOptions options_;
  double per_weight_;  // a power of two near 1 / expected weight
  std::vector<at::Tensor> start_, velocity_;
  std::vector<at::Tensor> unsent_;  // of a checkpoint, weight x move; undefined: nothing
  std::vector<Fragment> fragments_;
  std::map<std::string, std::size_t> fragment_of_;  // of every parameter of the model
  std::string cut_;                                 // which rank of a replica keeps what, hashed
  double rate_ = 0;                                 // of the last step
  double stop_ = 0;  // the largest wish of this rank since the last meeting
};

}  // namespace trireme::parallel
