#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/parallel/narrow.h"
#include "trireme/parallel/parameter_shard.h"
#include "trireme/parallel/precision.h"
#include "trireme/parallel/units.h"

namespace trireme::parallel {

/// The weights of a module whose state is sharded. A rank keeps its shards; the weights that layers
/// compute with are gathered from the shards of all ranks, unit by unit.
///
/// This class knows the units, their shards and how to gather a unit. `WholeWeights` and
/// `GatheredWeights` decide when a unit is gathered and released.
class ShardedWeights {
 public:
  virtual ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  const std::vector<ShardedParameter>& shards() const { return shards_; }
  /// This rank's shard of each box of each parameter: of the weights, which are gathered, and of
  /// the masters, which the optimizer updates. Where the dtypes agree they are the same tensors.
  const std::vector<std::vector<at::Tensor>>& tensors() const { return tensors_; }
  const std::vector<std::vector<at::Tensor>>& masters() const { return masters_; }
  const Units& units() const { return units_; }

  /// The masters have new values. Collective.
  virtual void updated(Weights weights) = 0;

  /// From now on nothing is gathered for the next step before that begins, and memory that a step
  /// has used stays.
  virtual void close_steps() { closed_steps_ = true; }

  /// Where weights are always whole: waits until the updates of all ranks have arrived.
  virtual void complete_update() {}

  /// A backward has ended, or a forward whose backward comes later: releases the gathered units,
  /// except those that are held.
  virtual void end_pass() = 0;

  /// Gathers all units and keeps them until `release_all`.
  virtual void hold() {}
  /// Waits for the units that are held, because backward does not ask for them.
  virtual void complete_held() {}
  virtual void release_all() {}

  /// Resets the counts of uses that `start_check` compares.
  virtual void forget_uses();

  /// The units in the order in which backward reaches them; empty before the first forward.
  std::vector<std::size_t> backward_order() const;

  /// Starts to compare how often the ranks that share the shards have used each unit in this step:
  /// an all-gather in the group that gathers weights. It starts before a rank waits for others
  /// elsewhere, so that a rank that ran other layers is found, instead of waiting for ever.
  void start_check();
  /// Throws if they differ, naming the unit and the ranks. Collective.
  void end_check();

  /// Gathers a tensor with the shape of this rank's part of the parameter; `parts` are this rank's
  /// shards, of any dtype. Collective.
  at::Tensor assemble(std::size_t parameter, const std::vector<at::Tensor>& parts) const;

  /// The memory of gathered units, and of blocks that are kept for reuse.
  virtual int64_t gathered_bytes() const = 0;

 protected:
  /// How shards become whole weights.
  ///
  ///   as they are   shard ───────────────────── all-gather ──────────────────> weights
  ///   narrow        shard ── encode ── bytes ── all-gather ── bytes ── decode ─> weights
  ///
  /// A rank decodes its own bytes too, so that all ranks compute with the same weights. What the
  /// optimizer updates keeps all its bits.
  struct Gathering {
    Narrow narrow = {};
    bool in_place = false;  ///< shards are parts of the gathered weights
  };

  /// Attaches to the layers that use units. Derived classes give units their memory, then call
  /// `take_values`. Collective.
  ShardedWeights(std::vector<nn::Parameter> parameters, Units units, const Mesh& mesh,
                 const Policy& policy, Gathering gathering);

  struct UnitState {
    int64_t bytes = 0;
    std::vector<int64_t> offsets;  // of its parameters in a block
    at::Tensor block;              // undefined: not gathered
    std::optional<comm::Work> work;
    std::vector<at::Tensor> encoded;  // of its boxes that travel narrow, while they are gathered
    bool bound = false;               // its parameters have the block's memory
    int64_t uses = 0;                 // in this step
  };

  /// Runs `inner`, a call of a layer that uses units.
  virtual nn::Flow around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner) = 0;

  /// Makes the masters. Moves the values of parameters that have memory into them, one parameter at
  /// a time, and initializes the others by their rules; then rounds them to the weights.
  void take_values();
  /// Rounds the masters to the weights.
  void round_masters();
  /// Counts the uses of a user's units, and remembers the order of users. A call that recomputes
  /// does not count.
  void note_use(std::size_t user, const nn::Flow& in);

  /// Starts to gather a unit into its block, unless this has been done.
  void start_gather(std::size_t unit);
  /// Waits until a unit is gathered, and gives its parameters that memory. Nothing happens where no
  /// gather is in flight.
  void complete_gather(std::size_t unit);
  /// The error message for reading a parameter that is not gathered.
  static std::string not_gathered(const std::string& name);
  /// Takes the memory from the parameters of a unit; reading one is an error with the message
  /// `why`.
  void unbind(std::size_t unit, const std::function<std::string(const std::string&)>& why);

  at::TensorOptions byte_options() const;
  int64_t shard_bytes(std::size_t parameter, const ShardedBox& box) const;
  /// The dtype of a parameter's weight, and the bytes of an element.
  at::ScalarType dtype_of(std::size_t parameter) const {
    return scalar_type_of(shards_[parameter].dtypes.compute);
  }
  int64_t item_bytes(std::size_t parameter) const {
    return static_cast<int64_t>(c10::elementSize(dtype_of(parameter)));
  }

  /// The ranks that share the shards of a unit, or of a parameter: those of the shard axis, and of
  /// experts all data ranks that hold the same.
  const comm::Communicator& group_of(const Unit& unit) const { return groups_[unit.experts]; }
  const comm::Communicator& group_of(std::size_t parameter) const {
    return group_of(units_.units[units_.unit_of[parameter]]);
  }
  /// Memory of `bytes[i]` in the i-th group.
  std::vector<at::Tensor> allocate(const std::vector<int64_t>& bytes) const;

  std::vector<nn::Parameter> parameters_;
  Units units_;
  std::vector<comm::Communicator> groups_;  // of the units that are no experts, of those that are
  std::vector<ShardedParameter> shards_;
  std::vector<std::vector<at::Tensor>> tensors_, masters_;
  std::vector<UnitState> states_;
  std::vector<std::size_t> forward_order_;  // of users
  bool closed_steps_ = false;
  std::vector<at::Tensor> local_;  // of a parameter whose boxes do not lie one after the other

 private:
  void attach();
  void make_masters();
  at::Tensor packed(std::size_t unit, std::size_t nth) const;
  bool is_narrow(std::size_t parameter) const {
    return gathering_.narrow.takes(dtype_of(parameter));
  }
  void decode(std::size_t unit);

  at::TensorOptions master_options() const;

  const Gathering gathering_;
  const bool masters_on_host_;
  struct UseCheck {
    at::Tensor all_uses;  // [ranks of a group, units], while they are compared
    comm::Work work;
  };
  std::vector<UseCheck> checks_;  // of each group
  void compare_uses(const UseCheck& check, const comm::Communicator& group) const;
  std::shared_ptr<ShardedWeights*> self_;  // hooks may outlive this object
};

/// ZeRO-1 and 2: weights are always whole. The shards are parts of the weights themselves, and the
/// other ranks' parts are gathered once after each update. (If they travel narrow, the masters have
/// memory of their own, because decoding changes the shards.)
class WholeWeights final : public ShardedWeights {
 public:
  /// Takes over the memory of the parameters. Collective.
  WholeWeights(std::vector<nn::Parameter> parameters, Units units, const Mesh& mesh,
               const Policy& policy, Narrow narrow = {});

  void updated(Weights weights) override;
  void complete_update() override;
  void end_pass() override {}
  int64_t gathered_bytes() const override;

 private:
  nn::Flow around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner) override;
  void start_gathers();

  std::vector<at::Tensor> memory_;  // of each group
  bool out_of_date_ = false;        // updated, and no gather has been started
};

}  // namespace trireme::parallel
