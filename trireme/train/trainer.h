#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/state.h"
#include "trireme/config/config.h"
#include "trireme/data/loader.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/schedule.h"
#include "trireme/parallel/attached_module.h"
#include "trireme/parallel/pipeline.h"

namespace trireme::train {

/// What a step came to, over all ranks.
struct StepResult {
  double loss = 0;  ///< sum / weight before the update; nan where nothing counted
  double weight = 0, grad_norm = 0, lr = 0;
  double stop = 0;  ///< what the ranks gave to `step` as their wish to stop, added up
};

/// Makes the model as this rank of the mesh holds it.
using ModelFactory = std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>;

/// The model; where its state will be sharded, without memory yet.
std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh);

/// A model, what keeps its ranks together, and its optimizer: turns batches into updates.
class Trainer {
 public:
  struct Extras {
    /// Of a pipeline's stages, where it was cut before: balancing by time again could differ.
    parallel::StageSizes cut = {};
    std::shared_ptr<core::Trace> trace = nullptr;
  };
  /// Begins from the seed. Collective.
  Trainer(const config::Config& config, const Mesh& mesh, std::shared_ptr<nn::ModelImpl> model,
          int64_t steps, Extras extras);
  Trainer(const config::Config& config, const Mesh& mesh, std::shared_ptr<nn::ModelImpl> model,
          int64_t steps)
      : Trainer(config, mesh, std::move(model), steps, Extras{}) {}

  /// One update, the `step`-th. Every rank runs as many micro-batches as the fullest one. A loss or
  /// a gradient that is not finite throws Error, before anything is updated, with the first tensor
  /// that was not. Collective.
  StepResult step(int64_t step, const data::Batch& batch, double wish_to_stop = 0);

  /// The loss over a dataset, each sample once; at most `batches` batches, 0: all. Collective.
  double evaluate(const data::Dataset& dataset, int64_t batches);

  /// Everything that must be saved to go on as if nothing had happened. Collective.
  checkpoint::State state() const;
  /// The other direction: tensors are loaded into state().items, the rest is here.
  void restore(const core::Json& extra);

  /// `look` is called in every step when all gradients are there, as sums, before they are used:
  /// with the step and the weight to divide them by.
  void on_gradients(std::function<void(int64_t step, double weight)> look) {
    look_ = std::move(look);
  }

  /// Into how many micro-batches every rank's block of this batch is cut: as the fullest one needs.
  int64_t num_micros(const data::Batch& batch) const;

  nn::ModelImpl& model() { return *model_; }
  const std::vector<nn::Parameter>& parameters() const { return attached_->parameters(); }
  /// What this rank keeps of them.
  const std::vector<parallel::Kept>& kept() const { return attached_->kept(); }
  /// What keeps the ranks together.
  parallel::Attached& attached() const { return *attached_; }
  /// The same where the mesh has a pipe axis, else nullptr.
  const parallel::Pipeline* pipeline() const { return pipeline_; }
  /// By name, in the order in which gradients arrive; empty before the first step.
  std::vector<std::string> gradient_order() const { return attached_->order(); }

  /// Throws if the replicas have drifted apart. Collective.
  void check_same() const { attached_->check_same(); }

  int64_t num_parameters() const;
  int64_t gradient_bytes() const { return attached_->gradient_bytes(); }

 private:
  std::shared_ptr<nn::ModelImpl> prepare(std::shared_ptr<nn::ModelImpl> model) const;
  std::unique_ptr<parallel::Attached> attach(const Extras& extras);
  std::unique_ptr<optim::Optimizer> make_optimizer() const;
  std::vector<nn::MicroBatch> cut(int64_t step, const data::Batch& batch) const;
  double run_micros(const std::vector<nn::MicroBatch>& micros);
  std::pair<double, double> evaluate(const std::vector<nn::MicroBatch>& micros);
  nn::Loss loss_of(const nn::MicroBatch& micro);
  [[noreturn]] void report_not_finite(int64_t step, double loss) const;

  const config::Config& config_;
  const Mesh& mesh_;
  std::shared_ptr<nn::ModelImpl> model_;
  parallel::AttachedModule* module_ = nullptr;  // one of the two is what is attached
  parallel::Pipeline* pipeline_ = nullptr;
  std::unique_ptr<parallel::Attached> attached_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  std::function<void(int64_t, double)> look_;
};

}  // namespace trireme::train
