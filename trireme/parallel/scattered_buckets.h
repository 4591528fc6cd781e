#pragma once

#include <deque>
#include <string>

#include "trireme/parallel/buckets.h"
#include "trireme/parallel/kept.h"

namespace trireme::parallel {

/// Who sums a gradient that ends in shards.
struct ScatterGroups {
  comm::Communicator shards;  ///< each rank gets its shard of the sum over these ...
  comm::Communicator rest;    ///< ... which is then summed over those
  comm::Communicator all;     ///< both
};

/// One parameter of a unit.
struct ScatterMember {
  at::Tensor parameter;
  ShardedParameter shards;
  std::size_t unit = 0;
};

/// Gradients end as shards. The parameters of one unit are one bucket.
///
///   kept whole (ZeRO-1)    every gradient has its place; summed once a step, in place
///   else       (ZeRO-2)    a unit's gradients are in a block that it has only while they come and
///                          are summed: in every micro-batch, and added to the shards
class ScatteredBuckets final : public Buckets {
 public:
  /// Collective. `names`: of the units.
  ScatteredBuckets(ScatterGroups groups, std::vector<ScatterMember> members,
                   std::vector<std::string> names, bool keep_whole);

  void discard() override;
  void begin_micro(bool last) override { last_ = last; }
  void end_micro() override;
  bool each_micro() const override { return !keep_whole_; }
  void wait() override;
  void add_late(std::size_t parameter, const at::Tensor& mine) override;
  std::vector<at::Tensor> homes(std::size_t parameter) override;
  void reorder(const std::vector<int64_t>&) override {}  // by `set_unit_order`, every run anew
  void agree_on_order() override {}
  int64_t memory_bytes() const override;

  /// Backward comes to the units in this order, on every rank.
  void set_unit_order(const std::vector<std::size_t>& units);

  /// So many blocks of the largest unit's size; more only if gradients come in another order.
  static constexpr std::size_t kBlocks = 1;

 private:
  struct Unit {  // what a bucket is besides its members
    std::size_t unit = 0;
    at::ScalarType dtype = at::kFloat;
    int64_t bytes = 0, shard_elems = 0;
    at::Tensor block;     // where its gradients are now; undefined: nowhere
    at::Tensor shards;    // what is left of them, flat; undefined where they are kept whole
    bool summed = false;  // the shards hold something of this step
    bool pooled = true;   // the block is one of those that all units share
  };
  struct Flying {
    std::size_t bucket = 0;
    comm::Work work;
    at::Tensor more;  // to be added to the shards
  };

  void put(std::size_t parameter, const at::Tensor& gradient, bool more) override;
  void start(std::size_t bucket) override;
  void settle_oldest();
  void take_block(Unit& unit);
  void lay_out();
  /// A box of a parameter in its block, flat; and this rank's shard of it, in `shards`.
  at::Tensor box_in(const Unit& unit, std::size_t parameter, const ShardedBox& box) const;
  at::Tensor shard_in(const at::Tensor& shards, std::size_t parameter, std::size_t box) const;

  ScatterGroups groups_;
  std::vector<ScatterMember> members_;
  std::vector<std::string> names_;
  const bool keep_whole_;
  bool last_ = true;
  std::vector<Unit> units_;                          // alike with buckets_
  std::vector<int64_t> offsets_;                     // bytes, of each parameter in its block
  std::vector<std::vector<int64_t>> shard_offsets_;  // elements, of each box in the shards
  at::Tensor whole_, shard_memory_;
  std::vector<at::Tensor> free_;  // blocks
  std::deque<Flying> flying_;
  /// Shards that are summed over the rest: one where it lies, or several small ones packed.
  struct Summing {
    comm::Work work;
    at::Tensor packed = {};
    std::vector<at::Tensor> homes = {};  // to unpack to
  };
  void sum_homes(std::size_t bucket);
  std::vector<Summing> summing_;
};

}  // namespace trireme::parallel
