#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::parallel {

struct BucketSizes {
  int64_t first_bytes = 1 << 20;  ///< small: what arrives first is on its way soon
  int64_t bytes = 25 << 20;
};

/// The gradients of the parameters that one group reduces together, in one block of registered
/// memory, cut into buckets. A bucket's reduction begins when all its gradients are there and those
/// of the buckets before it have begun: every rank begins them in the same order.
///
///   memory   | p9 p8 | p7 p6 p5 p4 | p3 p2 p1 p0 |      in the order of arrival
///   buckets  |   0   |      1      |      2      |
///
/// In a group of one nothing is reduced or copied: a gradient stays where backward has put it.
///
/// The first step reduces at its end, and observes the order in which gradients arrive; `reorder`
/// then lays them out so.
class Buckets {
 public:
  /// Collective: the memory is the group's.
  Buckets(comm::Communicator group, std::vector<at::Tensor> parameters, BucketSizes sizes);

  /// Takes the gradient of a parameter: the first of a step replaces, later ones are added.
  void add(std::size_t parameter, const at::Tensor& gradient);

  /// The parameter will get no more in this step, as far as the first one showed.
  void arrive(std::size_t parameter);

  /// Begins what has not begun; what never came counts as 0.
  void start_rest();

  /// How many reductions of this step have begun.
  std::size_t num_begun() const { return next_; }

  /// Waits until everything is reduced, and is ready for the next step.
  void wait();

  /// Did anything come for it in this step?
  bool used(std::size_t parameter) const { return places_[parameter].used; }

  /// What came after the parameter's bucket had begun, or undefined.
  const at::Tensor& late(std::size_t parameter) const { return places_[parameter].late; }

  /// Where its gradient is after `wait`. 0 where nothing came for it.
  const at::Tensor& home(std::size_t parameter);
  const comm::Communicator& group() const { return group_; }
  std::size_t size() const { return places_.size(); }

  /// The order in which gradients arrived in the first step, or were laid out by `reorder`.
  const std::vector<int64_t>& order() const { return order_; }
  /// From now on the memory is in this order, and buckets are reduced while gradients arrive.
  void reorder(const std::vector<int64_t>& order);
  bool ordered() const { return ordered_; }

  int64_t memory_bytes() const { return memory_.defined() ? memory_.numel() : 0; }

 private:
  struct Place {
    at::Tensor parameter, home;
    int64_t offset_bytes = 0;
    std::size_t bucket = 0;
    int fires = 0, expected = 1;
    bool used = false, arrived = false;
    at::Tensor late = {};
  };
  struct Bucket {
    at::Tensor data;
    std::vector<std::size_t> members;
    std::size_t waiting = 0;
  };
  bool alone() const { return group_.size() == 1; }
  void lay_out();
  void start(Bucket& bucket);

  comm::Communicator group_;
  BucketSizes sizes_;
  std::vector<Place> places_;
  std::vector<int64_t> order_, arrivals_;
  std::vector<Bucket> buckets_;
  at::Tensor memory_;
  std::size_t next_ = 0;  // the bucket that begins next
  std::vector<comm::Work> works_;
  bool ordered_ = false;
};

}  // namespace trireme::parallel
