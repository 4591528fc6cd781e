#pragma once

#include <c10/core/Event.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/state.h"
#include "trireme/config/config.h"
#include "trireme/data/loader.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/update_control.h"
#include "trireme/parallel/step_end.h"
#include "trireme/train/attach.h"
#include "trireme/train/batch_upload.h"
#include "trireme/train/expert_loads.h"
#include "trireme/train/local_training.h"
#include "trireme/train/model_state.h"
#include "trireme/train/step_graph.h"

namespace trireme::train {

/// The result of a step, over all ranks.
struct StepResult {
  double loss = 0;  ///< sum / weight before the update; nan if the weight is 0
  double weight = 0, grad_norm = 0, lr = 0;
  double stop = 0;                        ///< the sum of the ranks' `wish_to_stop`
  bool skipped = false;                   ///< float16: not finite, so nothing was updated
  std::optional<double> loss_scale = {};  ///< float16: that of this step
  /// Of replicas that train on their own, if they have met after this step. The numbers above are
  /// those of this rank's replica.
  std::optional<parallel::Meeting> meeting = {};
  /// Of a mixture of experts: how they were used.
  std::vector<nn::ExpertLoad> experts = {};
};

/// The mean loss, and the part of the choices that are right, of a model that makes such.
struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy = {};
};

/// A model, what it is attached to, and its optimizer: turns batches into updates.
class Trainer {
 public:
  /// Initializes the model from the seed. Collective.
  Trainer(config::Config config, Mesh mesh, std::shared_ptr<nn::ModelImpl> model, int64_t steps,
          const AttachOptions& options = {});

  /// Runs the batch of step `step` and updates. Where ranks share sequences, it has the positions
  /// of this rank (`train::part_of`). Every rank runs as many micro-batches as the one
  /// with most rows. If the loss or a gradient is not finite, nothing is updated: in float16 the
  /// step is skipped and the loss scale halved; otherwise throws Error and names the first such
  /// tensor. Collective.
  StepResult step(int64_t step, const data::Batch& batch, double wish_to_stop = 0);

  /// The same in two halves, so that a GPU never waits for the host: `start` returns as soon as
  /// everything is issued, `take` gives the results in the order of the steps, and waits for them.
  ///
  ///   host   start 1   start 2  take 1   start 3  take 2   ...
  ///   GPU         [ step 1     ][ step 2         ][ step 3
  ///
  /// An update that is not finite changes nothing, nor do those after it, whenever the host hears
  /// of it. Returns the sum of the ranks' `wish_to_stop`. Collective.
  double start(int64_t step, const data::Batch& batch, double wish_to_stop = 0);
  StepResult take();
  std::size_t num_started() const { return started_.size(); }

  /// What compression chose since the last call, as lines.
  std::string take_news();
  /// How many steps the host should be ahead: 1 on a GPU, 0 on the CPU, which computes in `start`.
  /// An asynchronous pipeline ends steps later than it starts them: `take` drains it if no more
  /// steps than these are started and not taken.
  std::size_t lag() const;

  /// For blocks of local updates that end by the clock. The next step takes the learning rate that
  /// follows `updates` updates.
  void place(int64_t updates);
  /// The replicas meet now. Collective.
  parallel::Meeting meet(double wish_to_stop);
  /// Where replicas train on their own: their meshes.
  const std::optional<parallel::ReplicaMeshes>& replicas() const { return replicas_; }

  /// Over a dataset of whole samples, each once; at most `batches` batches, 0: all. Collective.
  Evaluation evaluate(const data::Dataset& dataset, int64_t batches);

  /// Everything that must be saved to continue as if nothing had happened. Collective.
  checkpoint::State state() const;
  /// The state of this rank's replica: all of it, unless replicas train on their own. Collective.
  checkpoint::State own_state() const;
  /// Fills the tensors of the state from a checkpoint, which may be of another mesh and of another
  /// number of replicas. `own`: `own_state()`.
  void load(format::Checkpoint& from, const checkpoint::State& own);
  /// Restores what is not a tensor, after `load`. Returns what people should know of it.
  /// Collective.
  std::string restore();
  /// The same where the tensors were filled in another way; `extra`: of the state that they are of.
  void restore(const core::Json& extra) {
    loaded_ = {extra, ""};
    restore();
  }

  /// The weights and buffers of this rank, without adapters, which may be filled from elsewhere
  /// before the first step; `begin_from_weights` then follows.
  checkpoint::State weights() const;
  void begin_from_weights();

  /// `on_sums` is called in every step when all sums of gradients are complete, before their norm
  /// is computed; `on_gradients` after that, before they are used: with the number to divide them
  /// by.
  void watch(std::function<void()> on_sums, std::function<void(double divisor)> on_gradients) {
    on_sums_ = std::move(on_sums);
    on_gradients_ = std::move(on_gradients);
  }

  /// Into how many micro-batches every rank cuts its rows of this batch.
  int64_t num_micros(const data::Batch& batch) const {
    return attached_->num_micros(rows_of(batch));
  }

  /// Of all ranks.
  const Mesh& mesh() const { return mesh_; }
  nn::ModelImpl& model() { return *model_; }
  const std::vector<nn::Parameter>& parameters() const { return attached_->parameters(); }
  /// What this rank keeps of them.
  const std::vector<parallel::ParameterShard>& shards() const { return attached_->shards(); }
  /// The DataParallel, FullySharded or Pipeline.
  parallel::Attached& attached() const { return *attached_; }
  /// By name, in the order in which gradients arrive; empty before the first step.
  std::vector<std::string> gradient_order() const { return attached_->order(); }

  /// Not null: weights live on servers. `begin` comes before each step.
  ps::ServerParallel* servers() const { return servers_.get(); }

  /// Throws if the replicas have drifted apart. Collective.
  void check_same() const;

  /// Why the steps of a GPU are not replayed as a CUDA graph; empty if they are.
  const std::string& graph_obstacle() const { return graph_.obstacle(); }

  int64_t num_parameters() const;
  int64_t num_trained() const;
  int64_t gradient_bytes() const { return attached_->gradient_bytes(); }

 private:
  /// A step that was started and not yet taken.
  struct StartedStep {
    int64_t step;
    double stop;
    bool replayed = false;
    std::optional<parallel::Meeting> meeting = {};
    std::vector<nn::ExpertLoad> experts = {};
    at::Tensor numbers;  // totals of the step, UpdateControl::numbers after it, whether it skips
    std::optional<c10::Event> came;  // of a GPU: when they are in `numbers`, in pinned memory
    // Asynchronous: what all stages add up when each has made its update.
    double wish = 0;
    at::Tensor sums = {};  // weight, loss, squares of the gradients, wishes to stop
    comm::Work summed = {};
  };
  /// What `issue` gives: the numbers of StartedStep, and the sum of the wishes to stop.
  struct Issued {
    at::Tensor numbers;
    double stop;
  };
  void push(const data::Batch& batch, const at::Tensor& totals, const optim::Update& update);
  Issued issue(int64_t step, const data::Batch& batch, double wish_to_stop);
  /// Are the gradients of a step compressed? Of local updates only what travels in meetings is.
  bool compresses() const {
    return config_.compress.kind != config::Compression::None && !replicas_;
  }
  void expect_weight(const data::Batch& batch);
  // Asynchronous pipelines: see asynchronous_steps.cpp.
  double start_asynchronous(int64_t step, const data::Batch& batch, double wish_to_stop);
  void update_stage(const parallel::Totals& totals);
  void complete(StartedStep& started);
  void end_oldest();
  void check_all_taken(const char* what) const;
  bool is_asynchronous() const { return attached_->asynchronous() != nullptr; }
  bool watched() const { return on_sums_ != nullptr || on_gradients_ != nullptr; }
  double sum_of_wishes(double wish_to_stop) const;
  at::Tensor read_back(const at::Tensor& numbers, std::optional<c10::Event>& came) const;
  std::shared_ptr<nn::ModelImpl> prepare(std::shared_ptr<nn::ModelImpl> model) const;
  std::unique_ptr<optim::Optimizer> make_optimizer() const;
  parallel::BatchRows rows_of(const data::Batch& batch) const;
  std::vector<double> row_weights(const data::Batch& batch) const;
  std::vector<nn::MicroBatch> cut(int64_t step, const data::Batch& batch) const;
  [[noreturn]] void report_not_finite(const StartedStep& started, double loss) const;

  /// The ranks that make a step together: all, or those of this replica.
  const Mesh& step_mesh() const { return replicas_ ? replicas_->replica : mesh_; }
  void end_local_step(StartedStep& started, const data::Batch& batch, const at::Tensor& numbers);

  config::Config config_;
  Mesh mesh_;
  Positions positions_;                              // of each sequence, that this rank has
  std::optional<parallel::ReplicaMeshes> replicas_;  // if they train on their own
  std::shared_ptr<nn::ModelImpl> model_;
  nn::RecomputeSwitchPtr recompute_;  // of its layers; or null
  std::unique_ptr<parallel::Attached> attached_;
  std::unique_ptr<ps::ServerParallel> servers_;  // if weights live there; then
  std::unique_ptr<optim::Optimizer> optimizer_;  // there is no optimizer here
  std::unique_ptr<parallel::LocalUpdates> local_;
  optim::UpdateControl control_;
  BatchUpload upload_;
  StepGraph graph_;
  optim::UpdateControl::State now_;  // after the last step that was taken
  std::deque<StartedStep> started_;
  int64_t skipped_in_a_row_ = 0;
  double asked_to_stop_ = 0;  // by the last step that was taken
  parallel::WeightlessWarning weightless_;
  std::function<void()> on_sums_;
  std::function<void(double)> on_gradients_;
  LoadedState loaded_;
};

}  // namespace trireme::train
