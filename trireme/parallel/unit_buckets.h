#pragma once

#include <deque>
#include <string>

#include "trireme/parallel/buckets.h"
#include "trireme/parallel/parameter_shard.h"

namespace trireme::parallel {

/// One parameter of a unit.
struct UnitMember {
  at::Tensor parameter;
  ShardedParameter shards;
  std::size_t unit = 0;
  std::vector<GradientPlacePtr> places = {}, shard_places = {};  ///< of each box, of its shard
};

/// Gradients that end as shards. The parameters of one unit are one bucket. Its reduction is a
/// reduce-scatter over the ranks that share the state; the shards are then summed over the rest.
///
///   gradients of a unit   | p0 .......... | p1 ..... |        on every rank
///   reduce-scatter        |  r0  |  r1  | |r0 | r1 |          each rank gets its range of each box
///   all-reduce            over the ranks that have the same shards
///
/// This class lays out the gradients of a unit and starts their reduction. `WholeUnitBuckets` and
/// `ScatteredBuckets` decide in which memory gradients are, and how often they are reduced.
class UnitBuckets : public Buckets {
 public:
  void reorder(const std::vector<int64_t>&) override {}  // by `set_unit_order`, in every run
  void agree_on_order() override {}
  std::vector<at::Tensor> sum_late(std::size_t parameter, const at::Tensor& mine) override;

  /// Backward reaches the units in this order on every rank.
  void set_unit_order(const std::vector<std::size_t>& units);

 protected:
  /// `names`: of the units.
  UnitBuckets(std::shared_ptr<Reducer> reducer, GradientSums sums, std::vector<UnitMember> members,
              std::vector<std::string> names);

  struct UnitBlock {  // the memory of a bucket
    std::size_t unit = 0;
    at::ScalarType dtype = at::kFloat;
    core::DType wire = core::DType::Float32;
    int64_t bytes = 0, shard_elems = 0;
    at::Tensor block;     // holds the gradients; undefined: there are none
    at::Tensor shards;    // ScatteredBuckets: this rank's shards of the sum, flat
    bool summed = false;  // the shards hold a sum of this step
    bool pooled = true;   // the block is one of those that the units share
  };

  void put(std::size_t parameter, const at::Tensor& gradient, bool more) override;
  /// Makes sure that the unit has a block.
  virtual void need_block(UnitBlock& unit) = 0;
  /// Starts the reduce-scatter of a bucket; `shard_of` says where each shard goes.
  using ShardOf = std::function<at::Tensor(std::size_t parameter, std::size_t box)>;
  StartedSum scatter(std::size_t bucket, const ShardOf& shard_of);

  /// A box of a parameter in its unit's block, flat.
  at::Tensor box_in(const UnitBlock& unit, std::size_t parameter, const ShardedBox& box) const;
  bool is_summed_over_rest() const { return rest_.size() > 1; }
  /// The shards of a bucket, where they lie one after the other.
  std::vector<BlockMember> shard_members(std::size_t bucket) const;
  at::TensorOptions byte_options() const;

  std::shared_ptr<Reducer> reducer_;
  GradientSums sums_over_;
  int shards_lane_, rest_lane_;
  comm::Communicator rest_;
  std::vector<UnitMember> members_;
  std::vector<std::string> names_;
  std::vector<UnitBlock> units_;                     // one for each of buckets_
  std::vector<int64_t> offsets_;                     // bytes, of each parameter in its block
  std::vector<std::vector<int64_t>> shard_offsets_;  // elements, of each box in the shards

 private:
  void lay_out();
  void announce();
};

/// ZeRO-1: every gradient has its own memory, and is summed there once a step.
class WholeUnitBuckets final : public UnitBuckets {
 public:
  /// Collective.
  WholeUnitBuckets(std::shared_ptr<Reducer> reducer, GradientSums sums,
                   std::vector<UnitMember> members, std::vector<std::string> names);

  void wait() override;
  std::vector<at::Tensor> homes(std::size_t parameter) override;
  int64_t memory_bytes() const override { return memory_.numel(); }

 private:
  void need_block(UnitBlock&) override {}
  void start(std::size_t bucket) override;
  void complete_oldest();

  struct InFlight {
    std::size_t bucket = 0;
    StartedSum work;
  };
  at::Tensor memory_;
  std::deque<InFlight> in_flight_;
  std::vector<PackedSum> sums_;  // over the rest
};

/// ZeRO-2 and 3: a unit has a block only while its gradients arrive and are summed. It is summed in
/// every micro-batch, and the sums are added to the shards.
///
///   micro-batch 0    h.1: gradients -> block -> reduce-scatter -> shards    then the block is
///                    h.0: gradients -> block -> reduce-scatter -> shards    the next unit's
///   micro-batch 1    h.1: gradients -> block -> reduce-scatter -> shards += ...
class ScatteredBuckets final : public UnitBuckets {
 public:
  /// Collective.
  ScatteredBuckets(std::shared_ptr<Reducer> reducer, GradientSums sums,
                   std::vector<UnitMember> members, std::vector<std::string> names);

  void discard() override;
  void begin_micro(bool last) override { last_ = last; }
  void end_micro() override;
  bool each_micro() const override { return true; }
  void wait() override;
  std::vector<at::Tensor> homes(std::size_t parameter) override;
  int64_t memory_bytes() const override;

  /// The number of blocks, each as large as the largest unit. More are made only if gradients
  /// arrive in an unexpected order.
  static constexpr std::size_t kBlocks = 1;

 private:
  void need_block(UnitBlock& unit) override;
  void start(std::size_t bucket) override;
  void complete_oldest();
  at::Tensor shard_in(const at::Tensor& shards, std::size_t parameter, std::size_t box) const;

  struct InFlight {
    std::size_t bucket = 0;
    StartedSum work;
    at::Tensor more;  // to be added to the shards
  };
  bool last_ = true;
  at::Tensor shard_memory_;
  std::vector<at::Tensor> free_;  // blocks of registered memory
  std::deque<InFlight> in_flight_;
  std::vector<StartedSum> sums_;  // over the rest
};

}  // namespace trireme::parallel
