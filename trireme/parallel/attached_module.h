#pragma once

#include <memory>

#include "trireme/parallel/attached.h"
#include "trireme/parallel/gradients.h"
#include "trireme/parallel/step_end.h"

namespace trireme::parallel {

/// One module that every rank runs in full, micro-batch by micro-batch: `DataParallel`,
/// `FullySharded`. A pipeline has one for every stage.
class AttachedModule : public Attached {
 public:
  AttachedModule(torch::nn::Module& module, const Mesh& mesh, std::shared_ptr<Reducer> reducer,
                 Precision precision);

  /// Runs backward, and reduces gradients while it runs. `scale`: what the loss is multiplied by,
  /// one number (`Where::loss_scale`); undefined: 1.
  void backward(const nn::Loss& loss, Micro micro = Micro::Last, const at::Tensor& scale = {});
  /// Forgets the step so far: see Gradients::discard.
  virtual void discard();
  /// See Gradients::collect and ::defer.
  virtual void collect(Micro micro, const std::function<void()>& body);
  virtual std::vector<nn::WeightJob> defer(nn::WeightQueue& queue,
                                           const std::function<void()>& body);

  /// Call after a forward whose backward comes later.
  virtual void end_forward() {}

  /// Gathers all weights now and keeps them until `release`, where they are otherwise gathered for
  /// each layer.
  virtual void hold() {}
  virtual void release() {}

  /// No more gradients come in this step: starts the reductions that have not begun. `finish` calls
  /// it too.
  virtual void start_finish() { gradients().start_rest(); }
  /// Throws if other ranks ran other layers in this step. Called before this rank waits for them.
  virtual void check_step() {}
  /// Called when the gradients are complete.
  void end_finish();

  std::vector<Range> micro_batches(const BatchRows& rows) const override;
  /// Throws MisuseError for a module that is not an nn::Model, because it has no loss of its own.
  void run(const std::vector<nn::MicroBatch>& micros) override;
  LossTotals evaluate(const std::vector<nn::MicroBatch>& micros) override;
  Totals finish(const Finish& what = {}) override;

  virtual Gradients& gradients() = 0;
  virtual const Gradients& gradients() const = 0;

  const std::vector<nn::Parameter>& parameters() const override { return gradients().parameters(); }
  const std::vector<ParameterShard>& shards() const override { return gradients().shards(); }
  std::vector<std::string> order() const override { return gradients().order(); }
  Fires fires() const override { return gradients().fires(); }
  void set_order(const std::vector<std::string>& names, const Fires& fires = {}) override {
    gradients().set_order(names, fires);
  }
  Reducer& reducer() override { return *reducer_; }
  int64_t gradient_bytes() const override { return gradients().memory_bytes(); }
  const Mesh& mesh() const override { return mesh_; }
  std::vector<torch::nn::Module*> modules() const override { return {&module_}; }
  void check_same() const override;

  /// All parts of parameters that another rank may also keep. Collective.
  virtual std::vector<ParameterShard> shared() const = 0;

 protected:
  nn::ModelImpl& model() const;
  nn::Loss loss_of(const nn::MicroBatch& micro) const;

  torch::nn::Module& module_;
  Mesh mesh_;
  std::shared_ptr<Reducer> reducer_;
  const Precision precision_;

 private:
  LossTotals loss_;                    // of this step, on this rank
  std::unique_ptr<StepEnd> step_end_;  // made when the first step ends
};

}  // namespace trireme::parallel
