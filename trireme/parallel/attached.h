#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "trireme/nn/parameters.h"
#include "trireme/parallel/kept.h"

namespace trireme::parallel {

/// Does another micro-batch of the same step follow?
enum class Micro : uint8_t { Last, More };

/// When sums of gradients become means: in `finish`, or by whoever uses them (a fused optimizer
/// divides on the way, and saves a pass over memory).
enum class Divide : uint8_t { Now, Later };

/// What a step came to, over all ranks and micro-batches.
struct Totals {
  double weight = 0;
  std::vector<double> sums;  ///< of the values given to `finish`
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

  /// Completes a step: gradients are in `kept()`. `values` of all ranks are added up on the way.
  /// Buffers (running means and the like) of the first of the ranks that run a layer are
  /// everybody's from then on, as they were when this attached. Collective.
  virtual Totals finish(std::span<const double> values = {}, Divide divide = Divide::Now) = 0;

  /// What is kept has new values, from an optimizer or a checkpoint. Collective.
  virtual void updated() {}

  /// Throws if ranks that should keep the same values do not. Collective.
  virtual void check_same() const = 0;

  /// The parameters that are trained, of which this rank has a part.
  virtual const std::vector<nn::Parameter>& parameters() const = 0;

  /// What this rank keeps of them, in their order; gradients are here after `finish`. And of those
  /// that are not trained.
  virtual const std::vector<Kept>& kept() const = 0;
  virtual std::vector<Kept> frozen() const = 0;

  /// All of this rank's own part of a parameter that is trained, or of its gradient (undefined
  /// where there is none), whoever keeps it. Collective.
  virtual at::Tensor value(std::size_t parameter) = 0;
  virtual at::Tensor gradient(std::size_t parameter) = 0;

  /// The same of those that are not trained, as parameters and their values. Collective.
  struct Value {
    nn::Parameter parameter;
    at::Tensor value;
  };
  virtual std::vector<Value> frozen_values() = 0;

  /// The order in which gradients arrive, by name: for checkpoints. Empty until it was observed.
  virtual std::vector<std::string> order() const = 0;
  /// How many gradients of a step this rank waits for: for checkpoints. Without it the first step
  /// of a resumed run would add them up in another order.
  virtual Fires fires() const = 0;
  /// Starts from what was observed before. Collective in that all ranks must give the same names.
  virtual void set_order(const std::vector<std::string>& names, const Fires& fires = {}) = 0;

  /// Of the memory in which gradients are reduced.
  virtual int64_t gradient_bytes() const = 0;

  /// All ranks that it keeps one model.
  virtual const Mesh& mesh() const = 0;

  /// The module, or the parts of it, that this rank runs.
  virtual std::vector<torch::nn::Module*> modules() const = 0;

  /// Their buffers: whole, and after `finish` alike on all ranks that run the same layers.
  Buffers buffers() const {
    Buffers all;
    for (const torch::nn::Module* module : modules())
      for (const auto& item : module->named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }
};

}  // namespace trireme::parallel
