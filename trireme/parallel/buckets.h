#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "trireme/parallel/precision.h"
#include "trireme/parallel/reducer.h"

namespace trireme::parallel {

struct BucketSizes {
  int64_t first_bytes = 1 << 20;  ///< small, so that the first reduction starts early
  int64_t bytes = 25 << 20;
};

/// A parameter whose gradients are summed.
struct BucketMember {
  at::Tensor parameter;
  ParameterDtypes dtypes;
  GradientPlacePtr place = nullptr;

  /// The dtype in which its gradients are added up, and their bytes.
  at::ScalarType dtype() const { return scalar_type_of(dtypes.gradient()); }
  int64_t bytes() const {
    return parameter.numel() * static_cast<int64_t>(c10::elementSize(dtype()));
  }
};

/// The gradients of the parameters that one group reduces, in buckets. The reduction of a bucket
/// starts when all its gradients have arrived and the reductions of all earlier buckets have
/// started, so that every rank starts them in the same order.
///
///   arrive   | p9 p8 | p7 p6 p5 p4 | p3 p2 p1 p0 |
///   buckets  |   0   |      1      |      2      |
///
/// This class tracks which gradients have arrived. The derived classes `ReducedBuckets`,
/// `WholeUnitBuckets` and `ScatteredBuckets` decide how a bucket is reduced and where its result is
/// kept.
class Buckets {
 public:
  explicit Buckets(std::vector<BucketMember> members);
  virtual ~Buckets() = default;
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  /// Takes a gradient of a parameter. The first of a step replaces the old value, later ones are
  /// added.
  void add(std::size_t parameter, const at::Tensor& gradient);

  /// A gradient of the parameter has arrived. Once as many have arrived as in the first step, the
  /// parameter is complete; when all of a bucket are, its reduction starts.
  void arrive(std::size_t parameter);

  /// Drops the gradients of this step. No reduction of them may be in flight.
  virtual void discard() { forget(/*whole_step=*/true); }

  /// A step begins: gradients of the previous step may be overwritten.
  virtual void begin_step() {}
  /// The backward of a micro-batch begins or ends; `last`: it is the last of the step.
  virtual void begin_micro(bool /*last*/) {}
  virtual void end_micro() {}
  /// Are gradients reduced in every micro-batch, not only in the last?
  virtual bool each_micro() const { return false; }

  /// Starts the reductions that have not started. Gradients that did not arrive count as 0.
  virtual void start_rest();

  /// Waits for all reductions, and prepares for the next step.
  virtual void wait() = 0;

  /// Sums a gradient that arrived late on some ranks; the result has the shapes of `homes`. `mine`
  /// is undefined on ranks where nothing was late. Collective.
  virtual std::vector<at::Tensor> sum_late(std::size_t parameter, const at::Tensor& mine) = 0;

  /// The memory that holds the parameter's gradient after `wait`: all of it, or a shard of each of
  /// its boxes. Zeros if no gradient came.
  virtual std::vector<at::Tensor> homes(std::size_t parameter) = 0;

  /// Makes the memory of a gradient have the dtype in which gradients are added up. It may be
  /// narrower where backward gave a single gradient and nothing was added to it.
  virtual void widen(std::size_t /*parameter*/) {}

  /// True if nothing is summed over ranks. A parameter that was not used then has no home yet.
  virtual bool is_local() const { return false; }

  /// How many reductions of this step have started.
  std::size_t num_begun() const { return next_; }
  /// Did a gradient of the parameter come in this step?
  bool used(std::size_t parameter) const { return tracked_[parameter].used; }
  /// The gradients that came after the bucket's reduction had started; undefined if there are none.
  const at::Tensor& late(std::size_t parameter) const { return tracked_[parameter].late; }
  std::size_t size() const { return tracked_.size(); }

  /// How many gradients of a step the parameter waits for: as many as came in earlier steps, or as
  /// `expect` says.
  int expected(std::size_t parameter) const { return tracked_[parameter].expected; }
  void expect(std::size_t parameter, int fires) { tracked_[parameter].expected = fires; }

  /// The order in which the parameters' last gradients arrive; `order_known`: it is known and
  /// agreed on.
  const std::vector<int64_t>& order() const { return order_; }
  bool order_known() const { return order_known_; }
  /// Puts the buckets into this order; from now on they are reduced while gradients arrive.
  virtual void reorder(const std::vector<int64_t>& order) = 0;
  /// All ranks take the order that the first rank has observed. Collective.
  virtual void agree_on_order() = 0;

  virtual int64_t memory_bytes() const = 0;

 protected:
  struct TrackedParameter {
    BucketMember member;
    std::size_t bucket = 0;
    int fires = 0, expected = 1;
    bool used = false;     ///< a gradient came in this step
    bool here = false;     ///< its home holds gradients that are not reduced yet
    bool arrived = false;  ///< all gradients that it waits for have come
    at::Tensor late = {};
  };
  struct Bucket {
    std::vector<std::size_t> members;
    std::size_t waiting = 0;
  };

  /// Copies a gradient into its home until the bucket is reduced; `more`: adds it to what is there.
  virtual void put(std::size_t parameter, const at::Tensor& gradient, bool more) = 0;
  virtual void start(std::size_t bucket) = 0;

  /// Resets what has arrived, for the next micro-batch or for the next step.
  void forget(bool whole_step);

  std::vector<TrackedParameter> tracked_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> order_, arrivals_;
  std::size_t next_ = 0;  // the bucket whose reduction starts next
  bool order_known_ = false;
};

/// All-reduces gradients in one block of registered memory: every rank gets all of them. In a group
/// of one nothing is reduced or copied, and a gradient stays where backward has put it. On a GPU it
/// also keeps its 16 bits there, until another one is added to it: the optimizer reads half as
/// much.
///
/// The first step reduces at its end and observes the order in which gradients arrive. From the
/// second step on, gradients lie in that order and are reduced while backward runs.
class ReducedBuckets final : public Buckets {
 public:
  /// Sums over the ranks of a set. Collective: the memory is the group's.
  ReducedBuckets(std::shared_ptr<Reducer> reducer, RankSet over, std::vector<BucketMember> members,
                 BucketSizes sizes);

  /// Buckets that travel in another dtype exist twice while they are in flight: at most so many.
  static constexpr std::size_t kMostCopies = 2;

  void begin_step() override;
  void start_rest() override;
  void wait() override;
  std::vector<at::Tensor> sum_late(std::size_t parameter, const at::Tensor& mine) override;
  std::vector<at::Tensor> homes(std::size_t parameter) override { return {home(parameter)}; }
  void widen(std::size_t parameter) override;
  bool is_local() const override { return alone(); }
  void reorder(const std::vector<int64_t>& order) override;
  void agree_on_order() override;
  int64_t memory_bytes() const override { return memory_.defined() ? memory_.numel() : 0; }

 private:
  bool alone() const { return group_.size() == 1; }
  void put(std::size_t parameter, const at::Tensor& gradient, bool more) override;
  void start(std::size_t bucket) override;
  at::Tensor& home(std::size_t parameter);
  void lay_out();
  std::vector<BlockMember> members_of(std::size_t bucket) const;

  std::shared_ptr<Reducer> reducer_;
  RankSet over_;
  int lane_;
  comm::Communicator group_;
  BucketSizes sizes_;
  std::vector<at::Tensor> homes_, data_;  // of each parameter, of each bucket
  std::vector<int64_t> begins_;           // bytes, of each parameter in its bucket
  at::Tensor memory_;
  bool moves_ = false;  // the order is new: lay out before the next step
  std::deque<StartedSum> works_;
};

}  // namespace trireme::parallel
