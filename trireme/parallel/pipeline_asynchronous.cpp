// How a pipeline runs a periodic schedule: steps follow each other without draining the pipe.
#include <fmt/ranges.h>

#include "trireme/core/error.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/parallel/weight_versions.h"
#include "trireme/pipeline/passes.h"

namespace trireme::parallel {

namespace {

using pipeline::PeriodicSchedule;

/// One step by itself: what an evaluation and the placement of stages need.
pipeline::Schedule of_one_step(const PeriodicSchedule& schedule, const Mesh& mesh) {
  verify(schedule);
  if (mesh.degrees().shard > 1)
    throw ConfigError(fmt::format(
        "'{}' keeps several versions of whole weights, and mesh.shard = {} cuts them: set "
        "mesh.shard=1, or use a schedule that drains, such as 1f1b",
        schedule.name, mesh.degrees().shard));
  auto step = pipeline::make(
      "1f1b", {.ranks = schedule.ranks(), .micros = schedule.micros, .stages_per_rank = 1});
  step.name = schedule.name;
  return step;
}

}  // namespace

/// What a rank keeps of its steps. Steps are counted from 1, since this object was made:
///
///     begun 5, updated 3: steps 4 and 5 are unfinished, and the newest weights are W(3)
///
/// The first step uses the weights that are there. After a checkpoint was loaded, these are the
/// versions that it holds.
struct Pipeline::AsynchronousSteps {
  PeriodicSchedule schedule;
  WeightVersions versions;
  std::unique_ptr<StepEnd> step_end;  // of the ranks that run the same stage
  int64_t begun = 0, updated = 0;
  int since_empty = 0;  // steps begun since the pipe was empty
  int peak_versions = 1;
  at::Tensor losses = {};  // sum and weight of the step whose backwards run
  std::function<void(const Totals&)> update = {};

  /// How many steps the numbers of micro-batches tell apart.
  int slots() const { return schedule.depth() + 2; }
};

Pipeline::~Pipeline() = default;

Pipeline::Pipeline(nn::ModelImpl& model, const Mesh& mesh, const PeriodicSchedule& schedule,
                   PipelineOptions options)
    : Pipeline(model, mesh, of_one_step(schedule, mesh), std::move(options)) {
  if (!tied_.empty())
    throw ConfigError(fmt::format(
        "'{}' is a weight of the stages on ranks {} and {} of the pipe, which '{}' updates at "
        "different times: set model.tie=false, or use a schedule that drains, such as 1f1b",
        tied_.begin()->first, tied_.begin()->second.front(), tied_.begin()->second.back(),
        schedule.name));
  const int count = pipeline::peak_versions(schedule)[static_cast<std::size_t>(pipe_.rank())];
  asynchronous_ = std::make_unique<AsynchronousSteps>(
      AsynchronousSteps{.schedule = schedule, .versions = {shards_, count}, .step_end = {}});
  numbered_micros_ = asynchronous_->slots() * schedule_.micros;
  std::vector<Gradients*> gradients;
  std::vector<std::string> names;
  for (const auto& part : parts_) {
    gradients.push_back(&part->attached->gradients());
    for (const nn::Parameter& one : part->attached->parameters()) names.push_back(one.name);
  }
  asynchronous_->step_end = std::make_unique<StepEnd>(of_stage_, reducer_, std::move(gradients),
                                                      shards_, std::move(names));
}

void Pipeline::on_update(std::function<void(const Totals&)> update) {
  asynchronous_->update = std::move(update);
}

// When a rank has run a step, the others may be behind by the whole pipe; a step later they have
// ended the same ones.
std::size_t Pipeline::lag() const {
  return static_cast<std::size_t>(asynchronous_->schedule.depth()) + 1;
}

int Pipeline::delay() const {
  return asynchronous_->schedule.delay_of(stages_.front().index);
}

int Pipeline::peak_versions() const {
  return asynchronous_->peak_versions;
}

/// The actions with micro-batches numbered over the steps in flight, as messages name them, and
/// with transfers.
///
///     step  4             5             6             7
///           0:0 0:1 0:2   1:0 1:1 1:2   2:0 2:1 2:2   0:0 ...
pipeline::Program Pipeline::numbered(const pipeline::AgedProgram& aged) const {
  const AsynchronousSteps& steps = *asynchronous_;
  pipeline::Schedule mine{schedule_.name, numbered_micros_, schedule_.placement, {}};
  mine.programs.resize(schedule_.programs.size());
  auto& program = mine.programs[static_cast<std::size_t>(pipe_.rank())];
  for (auto [action, age] : aged) {
    if (has_micro(action.act))
      action.micro += static_cast<int>((steps.begun - age) % steps.slots()) * schedule_.micros;
    program.push_back(action);
  }
  return std::move(
      with_transfers(std::move(mine)).programs[static_cast<std::size_t>(pipe_.rank())]);
}

void Pipeline::begin_step() {
  AsynchronousSteps& steps = *asynchronous_;
  core::check(steps.update != nullptr,
              "Pipeline: '{}' updates within run; call asynchronous()->on_update first",
              schedule_.name);
  ++steps.begun;
  run_program(numbered(steps.schedule.step(pipe_.rank(), steps.since_empty++)));
}

void Pipeline::drain() {
  AsynchronousSteps& steps = *asynchronous_;
  core::check(state_ == StepState::Idle,
              "Pipeline: a step threw; build it anew and load the last checkpoint");
  run_program(numbered(steps.schedule.epilogue(pipe_.rank(), std::exchange(steps.since_empty, 0))));
  transfers_.finish_sends();
  steps.versions.use_newest();
  pipe_.note("");
}

/// Forward and backward of a micro-batch use the same version: that of its step.
void Pipeline::use_version_of(int micro) {
  AsynchronousSteps& steps = *asynchronous_;
  const int slots = steps.slots();
  const auto newest = static_cast<int>(steps.begun % slots);
  const int64_t step = steps.begun - (newest - micro / schedule_.micros + slots) % slots;
  const int64_t age = steps.updated - (step - 1) + delay();
  steps.versions.use(steps.versions.newest() - age);
  steps.peak_versions = std::max(steps.peak_versions, static_cast<int>(age) + 1);
}

/// Loss and weight of a micro-batch travel with its gradients: every stage needs the weight for its
/// update.
void Pipeline::take_loss(MicroInFlight& kept, std::vector<at::Tensor>& given) {
  if (!kept.loss.defined()) {
    kept.loss = std::move(given.back());
    given.pop_back();
  }
  at::Tensor& sum = asynchronous_->losses;
  if (!sum.defined())  // the first backward of a step: the gradients of the last one are used
    for (const ParameterShard& one : shards_) one.gradient() = at::Tensor();
  sum = sum.defined() ? sum + kept.loss : kept.loss;
}

/// A stage's own end of a step: sums its gradients over the ranks that run it, and updates.
void Pipeline::update() {
  AsynchronousSteps& steps = *asynchronous_;
  const at::Tensor losses = std::exchange(steps.losses, at::Tensor());
  const LossTotals own =
      reports_loss(mesh_.coord()) ? LossTotals{losses[0], losses[1]} : LossTotals{};
  for (const auto& part : parts_) part->attached->start_finish();
  for (const auto& part : parts_) part->attached->check_step();
  const Totals totals =
      steps.step_end->finish(own, {.divide = Divide::Later, .norm = true, .read = Read::Later});
  for (const auto& part : parts_) part->attached->end_finish();
  steps.versions.advance();
  ++steps.updated;
  steps.update(totals);
}

void Pipeline::pass_on(Weights weights) {
  if (asynchronous_ == nullptr)
    for (const auto& part : parts_) part->attached->updated(weights);
  else if (weights == Weights::Stale)
    asynchronous_->versions.round_masters();
}

at::Tensor Pipeline::value(std::size_t parameter) {
  if (asynchronous_ != nullptr) return shards_[parameter].master.detach();
  const auto [part, index] = origins_[parameter];
  return parts_[part]->attached->value(index);
}

at::Tensor Pipeline::gradient(std::size_t parameter) {
  if (asynchronous_ != nullptr) return shards_[parameter].gradient();
  const auto [part, index] = origins_[parameter];
  return parts_[part]->attached->gradient(index);
}

std::string Pipeline::describe_delays() const {
  const PeriodicSchedule& schedule = asynchronous_->schedule;
  return fmt::format(
      "asynchronous: gradients are {} updates late on the stages, which keep {} versions of their "
      "weights\n",
      fmt::join(schedule.delays, ", "), fmt::join(pipeline::peak_versions(schedule), ", "));
}

/// What versions mean: those of a checkpoint fit only the same stages with the same delays.
core::Json Pipeline::version_facts() const {
  return {{"cut", cut_}, {"delays", asynchronous_->schedule.delays}};
}

core::Json Pipeline::state() const {
  core::Json facts = {{"pipeline_cut", cut_}};
  if (asynchronous_ != nullptr) facts["weight_versions"] = version_facts();
  return facts;
}

void Pipeline::restore(const core::Json& extra) {
  if (asynchronous_ == nullptr) return;
  asynchronous_->versions.round_masters();
  if (extra.value("weight_versions", core::Json()) != version_facts())
    asynchronous_->versions.forget();
}

std::vector<PastWeight> Pipeline::past_weights() const {
  std::vector<PastWeight> all;
  if (asynchronous_ == nullptr) return all;
  core::check(in_flight_ == 0,
              "Pipeline: {} micro-batches are in flight; drain() before a checkpoint", in_flight_);
  const WeightVersions& versions = asynchronous_->versions;
  for (int age = 1; age < versions.count(); ++age)
    for (std::size_t i = 0; i < shards_.size(); ++i) all.push_back({i, age, versions.past(i, age)});
  return all;
}

}  // namespace trireme::parallel
