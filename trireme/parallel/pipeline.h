#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/trace.h"
#include "trireme/nn/model.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/attached_module.h"
#include "trireme/parallel/balance.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/parallel/stage.h"
#include "trireme/parallel/tied.h"
#include "trireme/parallel/transfers.h"
#include "trireme/pipeline/periodic.h"

namespace trireme::parallel {

struct PipelineOptions {
  /// How many places of the chain each stage has, in order; empty: balanced by parameters.
  StageSizes cut = {};
  BucketSizes buckets = {};
  /// What is sharded if the mesh has a shard axis, and whether weights stay gathered (and gradients
  /// whole) over the micro-batches of a step.
  Sharding sharding = Sharding::Parameters;
  bool keep_gathered = true;
  Narrow transfers = {}, gathers = {};  ///< how activations and sharded weights travel; on the CPU
  Precision precision = {};
  /// Off while a micro-batch goes forward whose backward follows at once; null: there is none.
  nn::RecomputeSwitchPtr recompute = nullptr;
  std::shared_ptr<core::Trace> trace = nullptr;  ///< of every action
  CompressOptions compress = {};                 ///< how gradients are compressed on the wire
  /// How gradients are summed, whatever `compress` says; null: by `make_reducer`.
  std::shared_ptr<Reducer> reducer = nullptr;
};

/// Cuts a model along its depth over the ranks of the pipe axis, and runs a schedule.
///
///   parallel::Pipeline pipe(*model, mesh, pipeline::make("1f1b", {.ranks = 2, .micros = 8}));
///   ...                                 // an optimizer on pipe.shards()
///   pipe.run(micros);                   // the forwards and backwards of a step
///   pipe.finish();                      // the gradients of one process; returns loss and weight
///   optimizer.step(...);
///   pipe.updated();
///
/// A rank keeps only the layers of its stages, under the names they have in the whole model; the
/// layers of other ranks have no memory here. Every stage has its own DataParallel or FullySharded
/// over the ranks of the other axes. The model must live as long as the pipeline.
///
/// Of a periodic schedule (pipedream, pipedream-2bw) it runs steps without draining the pipe: see
/// Asynchronous.
class Pipeline final : public Attached, private Asynchronous {
 public:
  /// Completes and verifies the schedule; throws ScheduleError or ConfigError before anything is
  /// computed. Names the layers of the model if they have no names. Collective.
  Pipeline(nn::ModelImpl& model, const Mesh& mesh, pipeline::Schedule schedule,
           PipelineOptions options = {});
  /// The same, asynchronously. Throws ConfigError for weights that two stages share or that are
  /// sharded: their stages are never at the same update.
  Pipeline(nn::ModelImpl& model, const Mesh& mesh, const pipeline::PeriodicSchedule& schedule,
           PipelineOptions options = {});
  ~Pipeline() override;

  /// As many as the schedule has, as even as possible, also for a short batch.
  std::vector<Range> micro_batches(const BatchRows& rows) const override;

  /// Forward and backward of a step's micro-batches, as many as the schedule has. Only the first
  /// stage reads the inputs (they may be undefined elsewhere), and only the last reads the targets.
  /// Collective over the pipe.
  void run(const std::vector<nn::MicroBatch>& micros) override;

  /// Forward only, of any number of micro-batches. Returns the losses on the last stage, 0
  /// elsewhere. Collective over the pipe.
  LossTotals evaluate(const std::vector<nn::MicroBatch>& micros) override;
  std::size_t evaluated_at_once() const override {
    return static_cast<std::size_t>(schedule_.micros);
  }

  Totals finish(const Finish& what = {}) override;
  Asynchronous* asynchronous() override { return asynchronous_ != nullptr ? this : nullptr; }
  void close_steps() override;
  void check_same() const override;
  const std::vector<nn::Parameter>& parameters() const override { return parameters_; }
  const std::vector<ParameterShard>& shards() const override { return shards_; }
  const Mesh& mesh() const override { return mesh_; }
  std::vector<ParameterShard> frozen() const override;
  at::Tensor value(std::size_t parameter) override;
  at::Tensor gradient(std::size_t parameter) override;
  std::vector<ParameterValue> frozen_values() override;
  std::vector<std::string> order() const override;
  Fires fires() const override;
  void set_order(const std::vector<std::string>& names, const Fires& fires = {}) override;
  std::string description() const override;
  core::Json state() const override;
  void restore(const core::Json& extra) override;
  std::vector<PastWeight> past_weights() const override;
  Reducer& reducer() override { return *reducer_; }
  int64_t gradient_bytes() const override;
  std::vector<torch::nn::Module*> modules() const override;

  const pipeline::Schedule& schedule() const { return schedule_; }
  const StageSizes& cut() const { return cut_; }
  /// The most micro-batches that this rank had in flight at the same time in the last step.
  int peak_in_flight() const { return peak_in_flight_; }
  /// Asynchronous: the most versions of its weights that this rank has used at the same time.
  int peak_versions() const;

 protected:
  void pass_on(Weights weights) override;

 private:
  void check_same_pipeline() const;
  void build_stages(nn::ModelImpl& model);
  void build_parts(const nn::ModelImpl& model);
  void collect_parameters(const nn::ModelImpl& model);
  Policy policy() const;
  void run_program(const pipeline::Program& program);
  void run(const pipeline::Action& action, Micro micro);
  Micro micro_at(const pipeline::Program& program, std::size_t at) const;
  [[noreturn]] void fail(const std::exception& error, const std::string& where) const;
  void expect_ahead(const pipeline::Program& program, std::size_t at);
  Stage& stage(int index);
  nn::Flow input_of(Stage& stage, int micro);
  std::optional<nn::Loss> compute(const Stage& stage, int micro, nn::Flow& flow) const;
  void evaluate(Stage& at, int micro, LossTotals& sums);
  void forward(Stage& stage, int micro);
  void backward(Stage& stage, const pipeline::Action& action, Micro micro);
  void backward_weights(Stage& stage, int micro, Micro last);
  void hand_on(Stage& stage, int micro);
  int tag(const pipeline::Action& action) const;
  const nn::MicroBatch& micro_batch(int micro) const;

  // Asynchronous: see pipeline_asynchronous.cpp.
  void on_update(std::function<void(const Totals&)> update) override;
  void drain() override;
  std::size_t lag() const override;
  int delay() const override;
  core::Json version_facts() const;
  std::string describe_delays() const;
  void begin_step();
  pipeline::Program numbered(const pipeline::AgedProgram& aged) const;
  void use_version_of(int micro);
  void take_loss(MicroInFlight& kept, std::vector<at::Tensor>& given);
  void update();

  Mesh mesh_, of_stage_;  // all ranks; those that run the same stages
  pipeline::Schedule schedule_;
  PipelineOptions options_;
  StageSizes cut_;
  nn::Chain chain_;
  comm::Communicator pipe_;
  Transfers transfers_;
  std::vector<std::unique_ptr<StagePart>> parts_;
  std::vector<Stage> stages_;
  std::vector<nn::Parameter> parameters_;
  std::vector<ParameterShard> shards_;
  std::vector<std::pair<std::size_t, std::size_t>> origins_;  // part and index of each parameter
  std::map<std::string, Holders> tied_;
  std::shared_ptr<Reducer> reducer_;
  std::unique_ptr<StepEnd> step_end_;
  const std::vector<nn::MicroBatch>* micros_ = nullptr;  // while they are run
  enum class StepState : uint8_t { Idle, Ran, Broken } state_ = StepState::Idle;
  std::vector<std::size_t>
      last_of_;               // of each stage: the index of its last backward in the program
  std::size_t expected_ = 0;  // receives up to here are posted
  int numbered_micros_;       // in messages; asynchronous: those of several steps
  LossTotals losses_;
  int in_flight_ = 0, peak_in_flight_ = 0;
  int64_t step_ = 0;
  struct AsynchronousSteps;
  std::unique_ptr<AsynchronousSteps> asynchronous_;
};

}  // namespace trireme::parallel
