#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/nn/model.h"
#include "trireme/nn/parameters.h"
#include "trireme/parallel/parameter_shard.h"
#include "trireme/parallel/reducer.h"

namespace trireme::parallel {

/// Does another micro-batch of the same step follow?
enum class Micro : uint8_t { Last, More };

/// When sums of gradients become means: in `finish`, or by whoever uses them (a fused optimizer
/// divides on the way, and saves a pass over memory).
enum class Divide : uint8_t { Now, Later };

/// When the host reads the totals of a step. On a GPU it has to wait for them: with Later they stay
/// in `Totals::on_device`, and loss, weight and norm are not known (nan). The CPU knows them
/// anyway.
enum class Read : uint8_t { Now, Later };

/// What `finish` is asked to do besides completing the gradients.
struct Finish {
  std::span<const double> values = {};  ///< added up over all ranks on the way
  Divide divide = Divide::Now;
  bool norm = false;  ///< also compute the norm of all gradients
  Read read = Read::Now;
  /// Called when the sums are complete, before they are counted or used.
  std::function<void()> on_sums = {};
};

/// The result of a step, over all ranks and micro-batches.
struct Totals {
  double loss = 0, weight = 0;  ///< sums; the mean loss is their quotient
  double norm = 0;              ///< of all gradients as they are now, if `finish` was asked for it
  std::vector<double> sums;     ///< of the values given to `finish`
  /// Weight, loss and squared norm of the gradients as they are now, three float64 numbers where
  /// gradients are: an update can use them before the host has read anything.
  at::Tensor on_device = {};
};

/// The losses of some micro-batches, added up where they are computed, so that the host does not
/// wait for them. Where several ranks compute a loss together, one of them reports it and the
/// others have nothing.
struct LossTotals {
  at::Tensor sum, weight;   ///< one float64 number each; undefined: 0
  at::Tensor correct = {};  ///< see nn::Loss; undefined: not counted

  void add(const nn::Loss& loss);
};

/// A rank's rows of a batch, to be cut into micro-batches.
struct BatchRows {
  int64_t mine = 0;     ///< rows of this rank
  int64_t largest = 0;  ///< most rows of any rank: all ranks run as many micro-batches as that one
  int64_t micro = 1;    ///< most rows of a micro-batch
};

/// How often autograd delivers a gradient for a parameter in one step, by name. Parameters with one
/// delivery are left out. (A weight that two stages of one rank use has two.)
using Fires = std::map<std::string, int>;

/// A module's buffers by name.
using Buffers = std::vector<std::pair<std::string, at::Tensor>>;

/// What a pipeline that does not drain between steps is to a trainer. `run` begins a step, and ends
/// earlier ones: it calls `update` for each stage's update, which comes `lag` steps later at most.
///
///   pipe.asynchronous()->on_update([&](const Totals& totals) { optimizer.step(...); });
///   pipe.run(step 1); pipe.run(step 2); ...
///   pipe.asynchronous()->drain();        // all steps have ended; evaluate, save, or go on
class Asynchronous {
 public:
  virtual ~Asynchronous() = default;

  /// `update` must update the masters of shards(), and call `updated`. It gets the totals of the
  /// step for this rank's stage: loss and weight are those of the step, the norm is the stage's.
  virtual void on_update(std::function<void(const Totals&)> update) = 0;
  /// Ends all steps that were begun. Every rank of the pipe must call it, between the same steps.
  virtual void drain() = 0;
  /// How many steps may be begun after a step before it has ended on all ranks.
  virtual std::size_t lag() const = 0;
  /// How many updates the weights of this rank's stage are older, in a forward, than those that the
  /// gradient is applied to.
  virtual int delay() const = 0;
};

/// A weight as it was some updates ago, which a later step will use.
struct PastWeight {
  std::size_t shard = 0;  ///< of shards()
  int age = 1;            ///< in updates
  at::Tensor tensor;
};

/// Makes the ranks of a mesh train one model: `DataParallel`, `FullySharded`, `Pipeline`. It
/// attaches to a module and does not change it.
///
///   run(micros)   forward and backward; gradients are summed while backward runs
///   finish()      waits for the sums; one small reduction: loss, weight, norm; .grad is set
///   ...           an optimizer updates the masters of shards()
///   updated()     passes the new values on to the weights
class Attached {
 public:
  virtual ~Attached() = default;

  /// The rows of each micro-batch of this rank. All ranks get the same number of micro-batches;
  /// some may be empty.
  virtual std::vector<Range> micro_batches(const BatchRows& rows) const = 0;
  int64_t num_micros(const BatchRows& rows) const {
    return static_cast<int64_t>(micro_batches(rows).size());
  }

  /// Forward and backward of a step's micro-batches. Collective.
  virtual void run(const std::vector<nn::MicroBatch>& micros) = 0;

  /// Forward only, of at most `evaluated_at_once` micro-batches. Collective.
  virtual LossTotals evaluate(const std::vector<nn::MicroBatch>& micros) = 0;
  virtual std::size_t evaluated_at_once() const { return 1; }

  /// Completes a step: the gradients are in `shards()`. Besides the gradients, one small reduction
  /// carries all that the ranks must know of each other. Then the first rank that runs a layer
  /// copies the layer's buffers (running means, for instance) to the others that run it, as it did
  /// when this object was attached. Collective.
  virtual Totals finish(const Finish& what = {}) = 0;

  /// The shards have new values, from an optimizer or a checkpoint. Collective.
  void updated(Weights weights = Weights::Stale) { pass_on(weights); }

  /// Not null: updates are made within `run`, and `finish` is not called.
  virtual Asynchronous* asynchronous() { return nullptr; }

  /// From now on a step gathers all that it uses itself and leaves nothing under way for the next,
  /// so that it can be recorded and repeated as a CUDA graph.
  virtual void close_steps() {}

  /// Throws if ranks that should keep the same values do not. Collective.
  virtual void check_same() const = 0;

  /// The trained parameters of which this rank has a part.
  virtual const std::vector<nn::Parameter>& parameters() const = 0;

  /// What this rank keeps of them, in their order, with the gradients after `finish`; and what it
  /// keeps of the parameters that are not trained.
  virtual const std::vector<ParameterShard>& shards() const = 0;
  virtual std::vector<ParameterShard> frozen() const = 0;

  /// This rank's full part of a trained parameter, or of its gradient (undefined if there
  /// is none), gathered from the ranks that keep the shards. Collective.
  virtual at::Tensor value(std::size_t parameter) = 0;
  virtual at::Tensor gradient(std::size_t parameter) = 0;

  /// The same for the parameters that are not trained. Collective.
  struct ParameterValue {
    nn::Parameter parameter;
    at::Tensor value;
  };
  virtual std::vector<ParameterValue> frozen_values() = 0;

  /// The order in which gradients arrive, by name, for checkpoints. Empty until it is known.
  virtual std::vector<std::string> order() const = 0;
  /// How many gradients of a step this rank waits for, for checkpoints. Without it the first step
  /// of a resumed run would add them up in another order.
  virtual Fires fires() const = 0;
  /// Uses an order that was observed before. All ranks must give the same names.
  virtual void set_order(const std::vector<std::string>& names, const Fires& fires = {}) = 0;

  /// Human-readable: the schedule and stages of a pipeline; empty for DataParallel and
  /// FullySharded.
  virtual std::string description() const { return {}; }

  /// What else a checkpoint must hold to restore it; the same on every rank.
  virtual core::Json state() const { return core::Json::object(); }
  /// What sums its gradients.
  virtual Reducer& reducer() = 0;
  /// Called with what `state` gave when the checkpoint was made, after its tensors were loaded.
  virtual void restore(const core::Json& /*extra*/) {}
  /// The weights of the past that later steps use, for checkpoints.
  virtual std::vector<PastWeight> past_weights() const { return {}; }

  /// The size of the memory in which gradients are reduced.
  virtual int64_t gradient_bytes() const = 0;

  /// The mesh of all ranks that train this model together.
  virtual const Mesh& mesh() const = 0;

  /// The module, or the parts of it, that this rank runs.
  virtual std::vector<torch::nn::Module*> modules() const = 0;

  /// Their buffers. After `finish` they are the same on all ranks that run the same layers.
  Buffers buffers() const {
    Buffers all;
    for (const torch::nn::Module* module : modules())
      for (const auto& item : module->named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }

 protected:
  /// `updated`: rounds the masters to the weights, if they are stale, and gathers what must be.
  virtual void pass_on(Weights /*weights*/) {}
};

}  // namespace trireme::parallel
