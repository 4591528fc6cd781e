#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/parallel/block_pool.h"
#include "trireme/parallel/sharded_weights.h"

namespace trireme::parallel {

/// ZeRO-3: a rank keeps only its shards of the weights. A unit is gathered when a layer needs it,
/// and released afterwards.
///
///   forward    gather h.0 ─> compute h.0 ─> release     while h.0 computes, h.1 is gathered:
///              gather h.1 ··········> compute h.1       in the order seen before
///   backward   gather h.1 ─> its gradients ─> release ...
///
/// Backward has no seam, so each call of a layer leaves two marks in autograd's graph: a hook on
/// its outputs, where its backward begins, and a `BackwardEnd` on its inputs, where it ends.
///
///   forward    in ──[BackwardEnd]──> compute ──> out (hook)
///   backward        release   <────── gradients <── gather
class GatheredWeights final : public ShardedWeights {
 public:
  struct Options {
    bool hold_all = false;  ///< all units will be held at the same time: keeps all their blocks
    int ahead = 1;          ///< how many units are gathered before they are needed
    Narrow narrow = {};     ///< how they travel
  };
  /// Takes over the memory of the parameters. Collective.
  GatheredWeights(std::vector<nn::Parameter> parameters, Units units, const Mesh& mesh,
                  const Policy& policy, Options options);
  ~GatheredWeights() override;

  void updated(Weights weights) override;
  void close_steps() override;
  void end_pass() override;
  void hold() override;
  void complete_held() override;
  void release_all() override;
  void forget_uses() override;
  int64_t gathered_bytes() const override { return pool_->bytes(); }

 private:
  enum class Phase : uint8_t { Forward, Recompute, Backward };
  using UnitUse = std::pair<std::size_t, Phase>;  // of a user
  struct PendingCall;                             // of a user, until its backward is over
  struct BackwardEnd;

  nn::Flow around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner) override;
  nn::Flow around_held(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner);
  void use(std::size_t user, Phase phase, bool trains);
  std::optional<UnitUse> next_use(const UnitUse& now, bool trains) const;
  void gather(std::size_t unit);
  void release(std::size_t unit);
  void release_after(std::size_t user, Phase phase);
  void release_recomputed(std::size_t next);
  void watch_backward(const std::shared_ptr<PendingCall>& call, nn::Flow& in) const;
  void begin_backward(const std::shared_ptr<PendingCall>& call);
  void end_backward(const std::shared_ptr<PendingCall>& call);

  const Options options_;
  bool held_ = false;
  std::vector<at::Tensor> memory_;  // of the shards, in each group
  std::optional<BlockPool> pool_;
  std::map<UnitUse, UnitUse> next_;  // what came after a use the last time
  std::optional<UnitUse> last_use_;
  std::shared_ptr<PendingCall> recomputed_;    // recomputed, its backward has not begun
  std::shared_ptr<GatheredWeights*> guarded_;  // graphs may outlive this object
};

}  // namespace trireme::parallel
