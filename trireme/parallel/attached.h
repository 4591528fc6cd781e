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

/// What `finish` is asked to do besides completing the gradients.
struct Finish {
  std::span<const double> values = {};  ///< added up over all ranks on the way
  Divide divide = Divide::Now;
  bool norm = false;  ///< also compute the norm of all gradients
  /// Called when the sums are complete, before they are counted or used.
  std::function<void()> on_sums = {};
};

/// What a step came to, over all ranks and micro-batches.
struct Totals {
  double loss = 0, weight = 0;  ///< sums; the mean loss is their quotient
  double norm = 0;              ///< if it was asked for: of all gradients as they are now
  std::vector<double> sums;     ///< of the values given to `finish`
};

/// The losses of some micro-batches. Where several ranks compute a loss together, one of them
/// reports it and the others have 0.
struct LossTotals {
  double sum = 0, weight = 0;
};

/// A rank's rows of a batch, to be cut into micro-batches.
struct BatchRows {
  int64_t mine = 0;     ///< rows of this rank
  int64_t largest = 0;  ///< rows of the rank that has most: all ranks run as many micro-batches
  int64_t micro = 1;    ///< rows of a micro-batch, at most
};

/// How many gradients come for a parameter in one step, by name; those that get one are left out.
/// (A weight of two stages on one rank gets two.)
using Fires = std::map<std::string, int>;

/// A module's buffers by name.
using Buffers = std::vector<std::pair<std::string, at::Tensor>>;

/// What keeps the ranks of a mesh one model: `DataParallel`, `FullySharded`, `Pipeline`. It
/// attaches to a module and leaves it as it is.
class Attached {
 public:
  virtual ~Attached() = default;

  /// Where each micro-batch of this rank's rows begins, and how many rows it has. All ranks get as
  /// many; some may be empty.
  virtual std::vector<Range> micro_batches(const BatchRows& rows) const = 0;
  int64_t num_micros(const BatchRows& rows) const {
    return static_cast<int64_t>(micro_batches(rows).size());
  }

  /// Forward and backward of a step's micro-batches. Collective.
  virtual void run(const std::vector<nn::MicroBatch>& micros) = 0;

  /// Forward only. Give as many micro-batches at a time as `evaluated_at_once`, or fewer.
  /// Collective.
  virtual LossTotals evaluate(const std::vector<nn::MicroBatch>& micros) = 0;
  virtual std::size_t evaluated_at_once() const { return 1; }

  /// Completes a step: gradients are in `shards()`. Besides the gradients themselves, one small
  /// reduction carries all that the ranks must know of each other. Buffers (running means and the
  /// like) of the first of the ranks that run a layer are everybody's from then on, as they were
  /// when this attached. Collective.
  virtual Totals finish(const Finish& what = {}) = 0;

  /// The shards have new values, from an optimizer or a checkpoint. Collective.
  virtual void updated() {}

  /// Throws if ranks that should keep the same values do not. Collective.
  virtual void check_same() const = 0;

  /// The parameters that are trained, of which this rank has a part.
  virtual const std::vector<nn::Parameter>& parameters() const = 0;

  /// What this rank keeps of them, in their order; gradients are here after `finish`. And of those
  /// that are not trained.
  virtual const std::vector<ParameterShard>& shards() const = 0;
  virtual std::vector<ParameterShard> frozen() const = 0;

  /// All of this rank's own part of a parameter that is trained, or of its gradient (undefined
  /// where there is none), whoever keeps it. Collective.
  virtual at::Tensor value(std::size_t parameter) = 0;
  virtual at::Tensor gradient(std::size_t parameter) = 0;

  /// The same of those that are not trained, as parameters and their values. Collective.
  struct ParameterValue {
    nn::Parameter parameter;
    at::Tensor value;
  };
  virtual std::vector<ParameterValue> frozen_values() = 0;

  /// The order in which gradients arrive, by name: for checkpoints. Empty until it was observed.
  virtual std::vector<std::string> order() const = 0;
  /// How many gradients of a step this rank waits for: for checkpoints. Without it the first step
  /// of a resumed run would add them up in another order.
  virtual Fires fires() const = 0;
  /// Starts from what was observed before. Collective in that all ranks must give the same names.
  virtual void set_order(const std::vector<std::string>& names, const Fires& fires = {}) = 0;

  /// How it runs a batch, for people: the schedule and the stages of a pipeline. Else empty.
  virtual std::string description() const { return {}; }

  /// What else a checkpoint must know of it, the same on every rank.
  virtual core::Json state() const { return core::Json::object(); }
  /// Tensors that its reducer keeps from step to step.
  virtual std::vector<ReducerState> reducer_states() = 0;

  /// Of the memory in which gradients are reduced.
  virtual int64_t gradient_bytes() const = 0;

  /// All ranks that it keeps one model.
  virtual const Mesh& mesh() const = 0;

  /// The module, or the parts of it, that this rank runs.
  virtual std::vector<torch::nn::Module*> modules() const = 0;

  /// Their buffers: whole, and after `finish` the same on all ranks that run the same layers.
  Buffers buffers() const {
    Buffers all;
    for (const torch::nn::Module* module : modules())
      for (const auto& item : module->named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }
};

}  // namespace trireme::parallel
