#pragma once

#include "trireme/parallel/gradients.h"

namespace trireme::parallel {

/// What keeps the ranks of a mesh one model: `DataParallel`, `FullySharded`. It attaches to a
/// module and leaves it as it is.
class Attached {
 public:
  virtual ~Attached() = default;

  /// Runs backward, and reduces gradients while it runs.
  virtual void backward(const nn::Loss& loss, Micro micro = Micro::Last) = 0;

  /// Completes a step: gradients are in `kept()`. See Gradients::finish. Collective.
  virtual Totals finish(std::span<const double> values = {}, Divide divide = Divide::Now) = 0;

  /// What is kept has new values, from an optimizer or a checkpoint. Collective.
  virtual void updated() {}

  /// Throws if ranks that should keep the same values do not. Collective.
  virtual void check_same() const = 0;

  virtual Gradients& gradients() = 0;

  /// What this rank keeps of the parameters that are trained, and of the others.
  const std::vector<Kept>& kept() { return gradients().kept(); }
  virtual std::vector<Kept> frozen() const = 0;

  /// All of this rank's own part of a parameter that is trained, or of its gradient (undefined
  /// where there is none), whoever keeps it. Collective.
  virtual at::Tensor value(std::size_t parameter) = 0;
  virtual at::Tensor gradient(std::size_t parameter) = 0;
};

}  // namespace trireme::parallel
