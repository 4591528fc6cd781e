#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/parallel/block_pool.h"
#include "trireme/parallel/kept.h"
#include "trireme/parallel/units.h"

namespace trireme::parallel {

/// Where the weights of a module are when only shards of them last.
///
///   forward    gather h.0 ─> compute h.0 ─> let go      while h.0 computes, h.1 is gathered:
///              gather h.1 ··········> compute h.1       in the order seen before
///   backward   gather h.1 ─> its gradients ─> let go ...
///
/// Kept whole (`Sharding::Optimizer`, `Gradients`) the shards are parts of the weights themselves,
/// and are gathered once after each update instead.
class ShardedWeights {
 public:
  struct Options {
    bool keep_whole = false;  ///< the weights, always
    bool hold_all = false;    ///< all units will be held at the same time: keep their blocks
    int ahead = 1;            ///< units that are gathered before they are needed
  };
  /// Takes over the memory of the parameters: values that are there are kept, those of parameters
  /// without memory are begun by their rules. Collective.
  ShardedWeights(const std::vector<nn::Parameter>& parameters, Units units, const Mesh& mesh,
                 Options options);
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  const std::vector<ShardedParameter>& shards() const { return shards_; }
  /// This rank's shard of each box of each parameter.
  const std::vector<std::vector<at::Tensor>>& tensors() const { return tensors_; }
  const Units& units() const { return units_; }

  /// The shards have new values. Collective.
  void updated();

  /// Where weights are kept whole: waits until what was updated has come from all ranks.
  void settle();

  /// A backward has ended, or a forward whose backward comes later: unless it is held, everything
  /// that is gathered is let go.
  void end_pass();

  /// What was used in this step so far does not count: see `start_check`.
  void forget_uses();

  /// All units are gathered from now on, and stay until they are let go of.
  void hold();
  /// Waits for those that are held: a backward does not ask for them.
  void complete_held();
  void let_go_of_all();

  /// The units in the order in which the last backward should come to them; empty before the first
  /// forward.
  std::vector<std::size_t> backward_order() const;

  /// Have all ranks that share the shards used every unit equally often in this step? Begun before
  /// a rank can wait for others elsewhere, so that one that gathers what they do not is found.
  void start_check();
  /// Throws if they have not, naming the unit and the ranks. Collective.
  void end_check();

  /// All of the rank's own part of a tensor of which `parts` are this rank's shards. Collective.
  at::Tensor assemble(std::size_t parameter, const std::vector<at::Tensor>& parts) const;

  /// What is gathered now, and the blocks that are held to be used again.
  int64_t gathered_bytes() const;

 private:
  enum class Phase : uint8_t { Forward, Again, Backward };  // Again: recomputed, for a backward
  struct State {
    int64_t bytes = 0;
    std::vector<int64_t> offsets;  // of its parameters in a block
    at::Tensor block;              // undefined: nothing is gathered
    std::optional<comm::Work> work;
    bool bound = false;
    int64_t uses = 0;
  };
  struct Call;  // of a user, until its backward is over
  struct Guard;

  void lay_out(const Mesh& mesh);
  void take_values();
  void attach();
  nn::Flow around(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner);
  nn::Flow around_kept(std::size_t user, nn::Flow in, const nn::LayerImpl::Call& inner);
  void note_order(std::size_t user);
  void use(std::size_t user, Phase phase, bool trains);
  void let_go_after(std::size_t user, Phase phase);
  void let_go_of_again(std::size_t next);
  void begin_backward(const std::shared_ptr<Call>& call);
  void end_backward_of(const std::shared_ptr<Call>& call);
  void gather(std::size_t unit);
  void complete(std::size_t unit);
  void let_go(std::size_t unit);
  at::Tensor packed(std::size_t unit, std::size_t nth) const;

  std::vector<nn::Parameter> parameters_;
  Units units_;
  comm::Communicator group_;
  const bool keep_whole_, hold_all_;
  const int ahead_;
  bool held_ = false;
  std::vector<ShardedParameter> shards_;
  std::vector<std::vector<at::Tensor>> tensors_;
  std::vector<at::Tensor> local_;  // of a parameter whose boxes do not lie one by one
  at::Tensor shard_memory_, whole_memory_;
  std::vector<State> states_;
  std::optional<BlockPool> pool_;
  using Use = std::pair<std::size_t, Phase>;
  std::map<Use, Use> next_;  // what came after it the last time
  std::optional<Use> last_use_;
  std::shared_ptr<Call> again_;             // was computed again, and waits for its backward
  std::vector<std::size_t> forward_order_;  // of users
  at::Tensor all_uses_;                     // [ranks, units], while they are compared
  comm::Work checking_;
  std::shared_ptr<ShardedWeights*> self_;  // hooks outlive this
};

}  // namespace trireme::parallel
