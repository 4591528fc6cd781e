#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/parallel/reducer.h"

namespace trireme::parallel {

struct BucketSizes {
  int64_t first_bytes = 1 << 20;  ///< small: what arrives first is on its way soon
  int64_t bytes = 25 << 20;
};

/// The gradients of the parameters that one group reduces together, in buckets. A bucket's
/// reduction begins when all its gradients are there and those of the buckets before it have begun:
/// every rank begins them in the same order.
///
///   arrive   | p9 p8 | p7 p6 p5 p4 | p3 p2 p1 p0 |
///   buckets  |   0   |      1      |      2      |
///
/// This class tracks which gradients have arrived. What a bucket's reduction is, and where its
/// result stays, is up to the derived classes: `ReducedBuckets`, `WholeUnitBuckets` and
/// `ScatteredBuckets`.
class Buckets {
 public:
  explicit Buckets(std::vector<at::Tensor> parameters);
  virtual ~Buckets() = default;
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  /// Takes the gradient of a parameter: the first of a step replaces, later ones are added.
  void add(std::size_t parameter, const at::Tensor& gradient);

  /// The parameter will get no more in this step, as far as the first one showed.
  void arrive(std::size_t parameter);

  /// What has come in this step counts for nothing. No reduction of it is under way.
  virtual void discard() { forget(/*whole_step=*/true); }

  /// A step begins: what is left of the one before may be overwritten.
  virtual void begin_step() {}
  /// A micro-batch's backward begins and ends; is it the last of the step?
  virtual void begin_micro(bool /*last*/) {}
  virtual void end_micro() {}
  /// Are gradients reduced in every micro-batch, not only in the last?
  virtual bool each_micro() const { return false; }

  /// Begins what has not begun; what never came counts as 0.
  virtual void start_rest();

  /// Waits until everything is reduced, and is ready for the next step.
  virtual void wait() = 0;

  /// The sum of what arrived late on some rank, in tensors like `homes`. Collective. The rank's own
  /// gradient may be undefined.
  virtual std::vector<at::Tensor> sum_late(std::size_t parameter, const at::Tensor& mine) = 0;

  /// Where the parameter's gradient is after `wait`: whole, or a shard of each of its boxes. Zeros
  /// where nothing came for it.
  virtual std::vector<at::Tensor> homes(std::size_t parameter) = 0;

  /// Is nothing summed over ranks? Then a parameter that was not used has no home yet.
  virtual bool is_local() const { return false; }

  /// How many reductions of this step have begun.
  std::size_t num_begun() const { return next_; }
  /// Did anything come for it in this step?
  bool used(std::size_t parameter) const { return tracked_[parameter].used; }
  /// What came after the parameter's bucket had begun, or undefined.
  const at::Tensor& late(std::size_t parameter) const { return tracked_[parameter].late; }
  std::size_t size() const { return tracked_.size(); }

  /// How many gradients of a step the parameter waits for, as far as steps have shown; or as said.
  int expected(std::size_t parameter) const { return tracked_[parameter].expected; }
  void expect(std::size_t parameter, int fires) { tracked_[parameter].expected = fires; }

  /// In which order gradients arrive, by the last of each; `order_known` once it is known and
  /// agreed on.
  const std::vector<int64_t>& order() const { return order_; }
  bool order_known() const { return order_known_; }
  /// From now on the buckets are in this order, and reduced while gradients arrive.
  virtual void reorder(const std::vector<int64_t>& order) = 0;
  /// The order that the first rank has seen is everybody's. Collective.
  virtual void agree_on_order() = 0;

  virtual int64_t memory_bytes() const = 0;

 protected:
  struct TrackedParameter {
    at::Tensor parameter;
    std::size_t bucket = 0;
    int fires = 0, expected = 1;
    bool used = false;  ///< something came in this step
    bool here = false;  ///< something of it waits to be reduced
    bool arrived = false;
    at::Tensor late = {};
  };
  struct Bucket {
    std::vector<std::size_t> members;
    std::size_t waiting = 0;
  };

  /// Keeps a gradient until its bucket is reduced; `more`: adds to what is there.
  virtual void put(std::size_t parameter, const at::Tensor& gradient, bool more) = 0;
  virtual void start(std::size_t bucket) = 0;

  /// Nothing has come yet: for the next micro-batch, or (`whole`) the next step.
  void forget(bool whole_step);

  std::vector<TrackedParameter> tracked_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> order_, arrivals_;
  std::size_t next_ = 0;  // the bucket that begins next
  bool order_known_ = false;
};

/// Gradients are summed in one block of registered memory, and every rank gets all of them.
///
/// In a group of one nothing is reduced or copied: a gradient stays where backward has put it.
///
/// The first step reduces at its end, and observes the order in which gradients arrive; from the
/// second on they lie so.
class ReducedBuckets final : public Buckets {
 public:
  /// Sums over the ranks of a set. Collective: the memory is the group's.
  ReducedBuckets(std::shared_ptr<Reducer> reducer, RankSet over, std::vector<at::Tensor> parameters,
                 BucketSizes sizes);

  void begin_step() override;
  void start_rest() override;
  void wait() override;
  std::vector<at::Tensor> sum_late(std::size_t parameter, const at::Tensor& mine) override;
  std::vector<at::Tensor> homes(std::size_t parameter) override { return {home(parameter)}; }
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

  std::shared_ptr<Reducer> reducer_;
  RankSet over_;
  comm::Communicator group_;
  BucketSizes sizes_;
  std::vector<at::Tensor> homes_, data_;  // of each parameter, of each bucket
  at::Tensor memory_;
  bool moves_ = false;  // there is a new order: lay out before the next step
  std::vector<comm::Work> works_;
};

}  // namespace trireme::parallel
