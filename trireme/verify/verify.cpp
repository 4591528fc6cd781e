#include "trireme/verify/verify.h"

#include <unistd.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "trireme/checkpoint/saver.h"
#include "trireme/comm/texts.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/nn/batch_statistics.h"
#include "trireme/train/stages.h"
#include "trireme/train/world.h"
#include "trireme/verify/compared_run.h"
#include "trireme/verify/report.h"
#include "trireme/verify/scratch_folder.h"

namespace trireme::verify {

namespace {

/// The tolerance of diagnoses where results are rounded: looser, because rounding errors are not
/// mistakes.
double diagnosis_tolerance(Dtype dtype) {
  constexpr double kRoundings = 1600;  // in float32 1e-4
  constexpr double kMost = 0.05;
  return std::min(kMost, kRoundings * rounding_of(dtype));
}

/// The loss scale of float16. Training finds the largest one by trying, and skips steps on the way;
/// here no step may be skipped.
constexpr double kMostScale = 1024;

config::Config computing_in(config::Config config, Dtype dtype) {
  config::Precision& keys = config.precision;
  keys.compute = dtype;
  if (dtype == Dtype::Float64) keys.reduce = Dtype::Float64;
  if (dtype != Dtype::Float64 && keys.reduce == Dtype::Float64) keys.reduce = Dtype::Float32;
  keys.loss_scale = std::min(keys.loss_scale, kMostScale);
  config::validate(keys);
  return config;
}

/// Adam divides a gradient by its own size. If the gradient is little more than rounding, two
/// correct computations make completely different steps. With a large eps the same kernels make
/// steps that are proportional to the gradient, and so are their errors.
constexpr double kProportional = 1;

/// A folder for checkpoints on the first rank's machine; removed with this object.
class TemporaryFolder {
 public:
  /// Collective.
  explicit TemporaryFolder(const comm::Communicator& world) : world_(world) {
    std::string made;
    if (world.rank() == 0) {
      own_.emplace();
      made = own_->path();
    }
    path_ = comm::broadcast_text(world, made, 0);
    at::Tensor unseen = at::tensor({::access(path_.c_str(), W_OK) == 0 ? 0 : 1}, at::kLong);
    world.all_reduce(unseen).wait();
    if (unseen.item<int64_t>() != 0) problem_ = "no folder in TMPDIR that all ranks can write to";
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// Saves the state of a run below `name`. All ranks of the world call it; those without that run
  /// give null.
  void save(const std::string& name, int64_t step, ComparedRun* run) {
    std::string problem;
    if (run != nullptr) {
      checkpoint::Saver saver(path_ + name, run->mesh(), /*keep=*/1, {.after_failure = ""});
      saver.save(step, run->trainer().state());
      problem = saver.wait().value_or("");
    }
    problem_ = comm::broadcast_text(world_, problem, 0);
  }

  const std::string& path() const { return path_; }
  /// Why nothing can be saved in it; empty if it can be used.
  const std::string& problem() const { return problem_; }

 private:
  comm::Communicator world_;
  std::optional<ScratchFolder> own_;  // of rank 0
  std::string path_, problem_;
};

/// Saves the run of the mesh, builds it anew and resumes. Collective.
void resume(std::optional<ComparedRun>& run, const TrainingSetup& setup,
            const config::Config& config, TemporaryFolder& folder, int64_t step, int64_t steps) {
  if (folder.problem().empty()) folder.save("/mesh", step, &*run);
  if (!folder.problem().empty()) return;
  const Mesh mesh = run->mesh();
  const parallel::StageSizes cut =
      run->trainer().attached().state().value("pipeline_cut", parallel::StageSizes{});
  run.reset();
  run.emplace(setup, config, mesh, ComparedRun::Options{.steps = steps, .cut = cut});
  run->load(folder.path() + "/mesh");
}

/// Layers whose outputs could not be recorded, or that only one of the two runs has.
std::vector<std::string> skipped(std::set<std::string> names,
                                 const std::vector<TensorRecord>& alone,
                                 const std::vector<std::vector<TensorRecord>>& ranks) {
  const auto outputs = [](const std::vector<TensorRecord>& records, std::set<std::string>& to) {
    for (const TensorRecord& record : records)
      if (record.role == TensorRole::Output) to.insert(record.name);
  };
  std::set<std::string> one, mesh;
  outputs(alone, one);
  for (const auto& records : ranks) outputs(records, mesh);
  std::set_symmetric_difference(one.begin(), one.end(), mesh.begin(), mesh.end(),
                                std::inserter(names, names.end()));
  return {names.begin(), names.end()};
}

/// The bias of the layer in this step.
at::Tensor bias_of(const std::string& layer, const std::vector<ComparedTensor>& step) {
  for (const ComparedTensor& one : step)
    if (one.role == TensorRole::Weight && one.name == layer + ".bias") return one.alone;
  return {};
}

at::Tensor weight_of(const std::string& name, const std::vector<TensorRecord>& records) {
  for (const TensorRecord& record : records)
    if (record.role == TensorRole::Weight && record.name == name) return record.value;
  return {};
}

/// What is compared: a step, the state after its update, or the state after the last update.
enum class Moment : uint8_t { Step, Update, End };

std::vector<TensorRecord> records_of(ComparedRun& run, Moment moment, int64_t step) {
  if (moment == Moment::Update) return run.state();
  return moment == Moment::Step ? run.step(step) : run.end();
}

/// The run on one rank, which the first rank of the mesh makes; the mesh is compared with it.
class Reference {
 public:
  Reference(const TrainingSetup& setup, const config::Config& config, const config::Config& exact,
            c10::Device device, const Options& options)
      : options_(options),
        roundings_{.compute = rounding_of(options.dtype),
                   .wire = rounding_of(config.precision.reduce)} {
    const ComparedRun::Options steps{.steps = options.steps};
    if (options.dtype != Dtype::Float64)
      rounded_.emplace(setup, config, mesh_of_one(device), steps);
    exact_.emplace(setup, exact, mesh_of_one(device), steps);
  }

  /// Compares the records of the ranks with its own, and adds the result to the report.
  void judge(Moment moment, int64_t step, const std::vector<std::vector<TensorRecord>>& ranks,
             Report& report) {
    auto records = records_of(*exact_, moment, step);
    const auto compared = rounded_ ? compare_rounded(records, records_of(*rounded_, moment, step),
                                                     ranks, report.degrees, roundings_)
                                   : compare(records, ranks, report.degrees);
    add_rows(report, compared);
    const auto found = std::find_if(
        compared.begin(), compared.end(),
        [&](const ComparedTensor& one) { return !(one.difference <= report.tolerance); });
    const int64_t at = moment == Moment::Step ? step : step + 1;  // weights belong to the next step
    if (found != compared.end()) {
      const DiagnosisContext context{
          .degrees = report.degrees,
          .tolerance = rounded_ ? diagnosis_tolerance(options_.dtype) : options_.tolerance,
          .before = weight_of(found->name, before_),
          .bias = bias_of(found->name, compared)};
      report.first = Finding{at,
                             found->role,
                             found->name,
                             found->difference,
                             found->worst_rank,
                             diagnose(*found, context),
                             options_.dtype};
    }
    report.steps = step;
    if (moment != Moment::Step) return;
    report.skipped = skipped(exact_->recorder().skipped(), records, ranks);
    before_ = std::move(records);
  }

  ComparedRun& exact() { return *exact_; }
  ComparedRun& rounded() { return *rounded_; }

 private:
  const Options& options_;
  const Roundings roundings_;
  std::optional<ComparedRun> exact_, rounded_;
  std::vector<TensorRecord> before_;  // of the step before
};

/// Makes all runs continue from the rounded state of one rank's float64 run, so that each
/// comparison shows the error of one step only. Otherwise rounding errors that an optimizer
/// amplifies (a gradient of 0 divided by itself) would show in later steps.
void start_from_same_state(std::optional<Reference>& reference, ComparedRun& on_mesh,
                           TemporaryFolder& folder, int64_t step) {
  if (!folder.problem().empty()) return;
  folder.save("/exact", step, reference ? &reference->exact() : nullptr);
  if (!folder.problem().empty()) return;
  on_mesh.load(folder.path() + "/exact");
  if (reference) reference->rounded().load(folder.path() + "/exact");
}

/// Throws if the mesh is not meant to give the numbers of one rank.
void check_comparable(const config::Config& config, const Degrees& degrees) {
  if (train::is_asynchronous(config, degrees))
    throw ConfigError(fmt::format(
        "verify: pipeline.schedule = \"{}\" on pipe {} computes gradients at older weights than "
        "one "
        "rank does, so the two are not meant to be equal; prove the model and the cut with "
        "pipeline.schedule=1f1b",
        config.pipeline.schedule, degrees.pipe));
}

/// Batch norm makes the rows of a micro-batch depend on each other, so one rank must have the
/// micro-batches of the mesh: of all ranks together. Returns how many rows those of one rank have.
/// Throws ConfigError where the mesh cuts batches in a way that one rank cannot.
int64_t rows_of_reference(const TrainingSetup& setup, ComparedRun& on_mesh,
                          const Degrees& degrees) {
  const config::Batch& batch = setup.config.batch;
  if (nn::batch_statistics_of(on_mesh.trainer().model()).empty()) return batch.micro;
  const int ranks = degrees.samples();
  const int64_t most = even_range(batch.global, ranks, 0).count;
  if (most <= batch.micro) return batch.global;
  const int64_t samples = setup.data->size();
  if (ranks == 1 && batch.global % batch.micro == 0 && samples % batch.global == 0)
    return batch.micro;
  throw ConfigError(fmt::format(
      "verify: the model has batch norms, which normalize each micro-batch by itself, and {} cuts "
      "batches of {} samples into other micro-batches than one rank does; use batch.micro={}, so "
      "that a rank has one",
      to_string(degrees), batch.global, most));
}

}  // namespace

Report verify(const TrainingSetup& setup, const comm::Communicator& world, const Degrees& degrees,
              const Options& options) {
  check_comparable(setup.config, degrees);
  config::Config asked = setup.config;
  if (options.dtype != Dtype::Float64) asked.optim.eps = kProportional;
  const config::Config config = computing_in(asked, options.dtype),
                       exact = computing_in(asked, Dtype::Float64);
  core::check(options.steps >= 1, "verify: {} steps prove nothing", options.steps);
  const c10::Device device = train::pick_device(config, world);
  std::optional<ComparedRun> on_mesh;
  on_mesh.emplace(setup, config, Mesh(world, degrees, device),
                  ComparedRun::Options{.plant = options.plant, .steps = options.steps});
  std::optional<Reference> reference;
  config::Config alone = config, alone_exact = exact;
  alone.batch.micro = alone_exact.batch.micro = rows_of_reference(setup, *on_mesh, degrees);
  if (world.rank() == 0) reference.emplace(setup, alone, alone_exact, device, options);
  TemporaryFolder folder(world);
  const bool rounds = options.dtype != Dtype::Float64, plants = options.plant != Mistake::None;

  Report report{.degrees = degrees,
                .steps = 0,
                .dtype = options.dtype,
                .tolerance = rounds ? 1 : options.tolerance,
                .rows = {},
                .skipped = {},
                .not_resumed = plants ? "a mistake was planted" : "it did not get that far",
                .first = {}};
  const auto judge = [&](Moment moment, int64_t step) {
    const auto ranks = gather(records_of(*on_mesh, moment, step), world);
    if (reference) reference->judge(moment, step, ranks, report);
    report = report_of(comm::broadcast_text(world, to_text(report), 0));
    return report.same();
  };
  for (int64_t step = 1; step <= options.steps; ++step) {
    if (!judge(Moment::Step, step)) return report;
    // Resuming from a checkpoint would undo a planted mistake.
    if (step == (options.steps + 1) / 2 && !plants) {
      resume(on_mesh, setup, config, folder, step, options.steps);
      report.not_resumed = folder.problem();
    }
    if (!rounds) continue;
    if (!judge(Moment::Update, step)) return report;
    if (!plants) start_from_same_state(reference, *on_mesh, folder, step);
  }
  judge(Moment::End, options.steps);
  return report;
}

}  // namespace trireme::verify
