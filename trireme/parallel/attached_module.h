#pragma once

#include "trireme/parallel/attached.h"
#include "trireme/parallel/gradients.h"

namespace trireme::parallel {

/// One module that every rank runs in full, micro-batch by micro-batch: `DataParallel`,
/// `FullySharded`. A pipeline has one for every stage.
class AttachedModule : public Attached {
 public:
  explicit AttachedModule(torch::nn::Module& module) : module_(module) {}

  /// Runs backward, and reduces gradients while it runs.
  virtual void backward(const nn::Loss& loss, Micro micro = Micro::Last) {
    gradients().backward(loss, micro);
  }
  /// Forgets the step so far: see Gradients::discard.
  virtual void discard() { gradients().discard(); }
  /// See Gradients::collect and ::defer.
  virtual void collect(Micro micro, const std::function<void()>& body) {
    gradients().collect(micro, body);
  }
  virtual std::vector<nn::WeightJob> defer(nn::WeightQueue& queue,
                                           const std::function<void()>& body) {
    return gradients().defer(queue, body);
  }

  /// A forward of which the backward comes later has ended.
  virtual void end_forward() {}

  /// Weights that are gathered when they are needed are gathered now, and stay until `let_go`.
  virtual void hold() {}
  virtual void let_go() {}

  /// Nothing more will come in this step: reductions that have not begun begin. `finish` does it
  /// too.
  virtual void start_finish() { gradients().start_rest(); }

  virtual Gradients& gradients() = 0;
  virtual const Gradients& gradients() const = 0;

  const std::vector<nn::Parameter>& parameters() const override { return gradients().parameters(); }
  const std::vector<Kept>& kept() const override { return gradients().kept(); }
  std::vector<std::string> order() const override { return gradients().order(); }
  Fires fires() const override { return gradients().fires(); }
  void set_order(const std::vector<std::string>& names, const Fires& fires = {}) override {
    gradients().set_order(names, fires);
  }
  int64_t gradient_bytes() const override { return gradients().memory_bytes(); }
  std::vector<torch::nn::Module*> modules() const override { return {&module_}; }

  /// Everything of the parameters that some other rank may keep too. Collective.
  virtual std::vector<Kept> shared() const = 0;

 protected:
  torch::nn::Module& module_;
};

}  // namespace trireme::parallel
