#include "trireme/train/run_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <sstream>
#include <vector>

#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/comm/texts.h"
#include "trireme/config/mesh.h"
#include "trireme/config/text.h"
#include "trireme/core/error.h"
#include "trireme/cuda/graph.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/train/announce.h"
#include "trireme/train/datasets.h"
#include "trireme/train/first_weights.h"
#include "trireme/train/milliseconds.h"
#include "trireme/train/reducer_state.h"
#include "trireme/train/resume_point.h"
#include "trireme/train/run_files.h"
#include "trireme/train/step_lines.h"
#include "trireme/train/timed_training.h"
#include "trireme/train/trainer.h"
#include "trireme/train/world.h"

namespace trireme::train {

namespace {

using Clock = std::chrono::steady_clock;

int64_t steps_of(const config::Config& config, const data::Order& order) {
  return config.run.epochs > 0 ? config.run.epochs * order.batches_per_epoch() : config.run.steps;
}

config::Config config_of(Phase phase, config::Config config) {
  if (phase == Phase::Lockstep) config.sync = {};
  return config;
}

/// A run during one of its phases.
class Run {
 public:
  Run(const config::Config& config, const comm::Communicator& world, const ModelFactory& model,
      const StopSignals& signals, Phase phase)
      : config_(config),
        world_(world),
        signals_(signals),
        data_(make_dataset(config)),
        valid_(config.eval.every > 0 ? make_valid_dataset(config) : nullptr),
        data_facts_(facts_of(*data_)),
        mesh_(world, config::degrees_of(config, world.size()), pick_device(config, world)),
        order_(static_cast<uint64_t>(config.run.seed), *data_, config.batch.global),
        steps_(steps_of(config, order_)),
        until_(phase == Phase::Lockstep ? std::min(steps_, config.sync.after) : steps_),
        files_(config, world),
        trace_(make_trace()),
        trainer_(config_of(phase, config), mesh_, build(model, mesh_), steps_,
                 {known_cut(), trace_}),
        saver_(files_.checkpoints(), mesh_, config.checkpoint.keep),
        lines_(files_, world, signals) {
    world_.set_trace(trace_);
  }

  /// Returns the exit code; nothing if only the phase is over.
  std::optional<int> train() {
    check_same_data();
    const bool begins_from = !config_.model.from.empty(), adapts = config_.lora.rank > 0;
    if (begins_from && adapts) load_base();
    if (!resume() && begins_from && !adapts) tell(load_first_weights(config_, world_, trainer_));
    if (step_ >= steps_ && step_ > 0) {
      if (leads())
        fmt::print("already at step {} ({}): raise {}, or use another run.dir\n", step_,
                   config_.run.epochs > 0
                       ? fmt::format("run.epochs = {} are {} steps", config_.run.epochs, steps_)
                       : fmt::format("run.steps = {}", steps_),
                   config_.run.epochs > 0 ? "run.epochs" : "run.steps");
      return 0;
    }
    begin();
    signals_.defer();
    const double stop = steps_ == 0                                       ? 0
                        : trainer_.replicas() && config_.sync.seconds > 0 ? loop_by_time()
                                                                          : loop();
    return finish(stop);
  }

  void log(const std::string& what) { files_.log(what); }
  void let_save_end() { saver_.wait(); }

 private:
  using From = config::Resume::From;

  bool leads() const { return world_.rank() == 0; }

  std::shared_ptr<core::Trace> make_trace() const {
    if (!config_.log.trace) return nullptr;
    at::Tensor origin = at::tensor({core::Trace::time_of_day().count()}, at::kLong);
    world_.broadcast(origin, 0).wait();
    return std::make_shared<core::Trace>(world_.rank(),
                                         std::chrono::nanoseconds(origin.item<int64_t>()));
  }

  /// How the pipeline was cut in the run that this one continues; empty if there was none.
  parallel::StageSizes known_cut() const {
    if (mesh_.degrees().pipe == 1) return {};
    return cut_to_resume(config_, world_);
  }

  void tell(const std::string& what) {
    files_.log(what);
    if (leads()) fmt::print("{}\n", what);
  }

  /// A checkpoint of adapters does not hold the weights that they belong to: every run reads them.
  void load_base() {
    tell(load_first_weights(config_, world_, trainer_));
    base_ = fingerprint_of_first_weights(config_, world_);
  }

  /// Throws if the adapters of a checkpoint belong to other weights.
  void check_base(const format::Checkpoint& saved) const {
    if (base_.empty()) return;
    const core::Json& base = saved.index().extra.at("lora").at("base");
    if (base.value("content", base_) != base_)
      throw ConfigError(fmt::format(
          "cannot continue {}: its adapters belong to other weights than those that model.from = "
          "\"{}\" has now; bring them back or use another run.dir",
          saved.folder(), config_.model.from));
  }

  /// Loads the newest complete checkpoint; returns whether there is one.
  bool resume() {
    const auto& [from, folder] = config_.checkpoint.resume;
    if (from == From::Nothing) {
      refuse_newer(config_, -1);
      return false;
    }
    const auto load = [&, own = trainer_.own_state()](format::Checkpoint& one) {
      check_fits(one, config_, data_facts_);
      check_base(one);
      trainer_.load(one, own);
    };
    std::optional<format::Checkpoint> saved;
    if (from == From::Newest) {
      saved = checkpoint::load_newest(files_.checkpoints(), world_, load);
      if (!saved) return false;
    } else {
      saved = checkpoint::open(folder);
      refuse_newer(config_, saved->index().step);
      load(*saved);
    }
    world_.barrier();  // all ranks have loaded, before anything is removed
    const std::string note = trainer_.restore();
    restore_reducer(trainer_.attached(), *saved);
    step_ = saved->index().step;
    used_samples_ = saved->index().extra.value("used_samples", order_.samples_before(step_));
    if (step_ < config_.sync.after && until_ == steps_ && trainer_.replicas())
      throw CheckpointError(fmt::format(
          "the newest checkpoint was damaged, and step {} before it is of the lockstep phase "
          "(sync.after = {}): start again to continue from there",
          step_, config_.sync.after));
    last_saved_ = from == From::Newest ? step_ : -1;
    tell(fmt::format("continues from {}", saved->folder()));
    if (!note.empty()) tell(note);
    return true;
  }

  /// Throws if a host has other data than rank 0: it would train on wrong samples.
  void check_same_data() const {
    core::Json mine = {data_facts_};
    if (valid_) mine.push_back(facts_of(*valid_));
    const auto facts = comm::all_gather_texts(world_, mine.dump());
    for (std::size_t rank = 1; rank < facts.size(); ++rank)
      if (facts[rank] != facts[0])
        throw ConfigError(fmt::format(
            "rank {} reads other data than rank 0: {}, not {}; give every host the same files",
            rank, facts[rank], facts[0]));
  }

  void begin() {
    files_.begin(step_);
    files_.log(fmt::format("{} ranks over {}, step {} of {}", world_.size(), world_.backend(),
                           step_, steps_));
    if (mesh_.device().is_cuda())
      files_.log(trainer_.graph_obstacle().empty()
                     ? "steps are replayed as a CUDA graph"
                     : fmt::format("no CUDA graph: {}", trainer_.graph_obstacle()));
    if (leads()) announce(config_, trainer_, *data_, steps_);
  }

  /// Returns the sum of the ranks' requests to stop.
  double loop() {
    const comm::Communicator samples = mesh_.samples();
    data::Loader loader(part_of(data_, config_, mesh_), order_, samples.rank(), samples.size(),
                        step_, static_cast<int>(config_.data.workers));
    double stop = 0;
    begin_lines();
    while (step_ < until_ && stop == 0) {
      const auto asked = Clock::now();
      const data::Batch batch = loader.next();
      const double data_ms = milliseconds_since(asked);
      stop = trainer_.start(++step_, batch, signals_.wish());
      if (trace_)
        trace_->add(core::Trace::Row::Actions, fmt::format("step {}", step_), asked, Clock::now());
      StepReport report;
      report.step = step_;
      report.data_ms = data_ms;
      report.step_ms = milliseconds_since(asked);
      started_.push_back(report);
      // What looks at the state after this step, or ends the run, comes after its result.
      const bool looks = due(config_.check.hash_every) || due(config_.eval.every) ||
                         due(config_.checkpoint.every) || step_ == until_ || stop != 0;
      report_all_but(looks ? 0 : trainer_.lag());
      tell_news();
      // The line is written before the checkpoint: a run that is killed between the two would
      // otherwise never write it. The time to copy the state counts for the next step.
      if (due(config_.checkpoint.every) && step_ < until_ && stop == 0) save();
    }
    if (stop != 0 && step_ < steps_)
      lines_.say(fmt::format("asked to stop: saving step {}", step_));
    lines_.end();
    return stop;
  }

  /// The same with blocks that end by the clock: a line for each meeting that ends a step.
  double loop_by_time() {
    TimedTraining blocks(config_, data_, trainer_, {step_, steps_, used_samples_});
    double stop = 0;
    begin_lines();
    if (const int64_t again = used_samples_ - blocks.used_samples(); again > 0)
      lines_.say(
          fmt::format("{} samples are used again: with another number of replicas, batches "
                      "begin elsewhere",
                      again));
    while (!blocks.is_over() && stop == 0) {
      stop = blocks.train_block(signals_.wish());
      used_samples_ = blocks.used_samples();
      if (const auto report = blocks.take_report()) end_block(*report, stop);
    }
    lines_.end();
    return stop;
  }

  void end_block(StepReport report, double stop) {
    const int64_t before = std::exchange(step_, report.step);
    const auto crosses = [&](int64_t every) { return every > 0 && step_ / every > before / every; };
    report.step_ms = milliseconds_since(reported_);
    report.tokens_per_s = report.weight / report.step_ms * 1e3;
    if (crosses(config_.eval.every)) evaluate(report);
    report.sent_mib = lines_.take_sent_mib();
    write(report);
    reported_ = Clock::now();
    if (crosses(config_.checkpoint.every) && step_ < steps_ && stop == 0) save();
  }

  void begin_lines() {
    reported_ = Clock::now();
    lines_.begin(step_, steps_, config_);
  }

  void write(StepReport& report) {
    report.floor = data_->floor();
    lines_.write(report, order_);
  }

  /// What the reducer has decided, such as which buckets are worth compressing.
  void tell_news() {
    std::istringstream news(trainer_.take_news());
    for (std::string line; std::getline(news, line);) {
      files_.log(line);
      lines_.say(line);
    }
  }

  /// Waits for the steps that were started, but not for the newest `left`, and writes their lines.
  /// Two steps that are waited for together have taken half of the time each. An asynchronous
  /// pipeline computes in `start`, for several steps at once: a step has taken as long as its
  /// start, and the newest also as long as the pipe took to drain.
  void report_all_but(std::size_t left) {
    const bool computes_in_start = mesh_.device().is_cpu() && trainer_.lag() > 0;
    const auto asked = Clock::now();
    std::vector<StepResult> results;
    std::exception_ptr failure;  // of a step: those before it are reported
    try {
      while (trainer_.num_started() > left) results.push_back(trainer_.take());
    } catch (...) {
      failure = std::current_exception();
    }
    const double step_ms = milliseconds_since(reported_) / static_cast<double>(results.size());
    const double drain_ms = milliseconds_since(asked);
    for (const StepResult& result : results) {
      const StepReport& one = started_.front();
      report(result, !computes_in_start  ? step_ms
                     : one.step == step_ ? one.step_ms + drain_ms
                                         : one.step_ms);
    }
    if (failure) std::rethrow_exception(failure);
    if (!results.empty()) reported_ = Clock::now();
  }

  void report(const StepResult& result, double step_ms) {
    StepReport report = started_.front();
    started_.pop_front();
    fill(report, result);
    report.step_ms = step_ms;
    report.tokens_per_s = result.weight / report.step_ms * 1e3;
    const bool newest = report.step == step_;
    if (newest && due(config_.check.hash_every)) trainer_.check_same();
    if (newest && due(config_.eval.every)) evaluate(report);
    if (world_.size() > 1) report.sent_mib = lines_.take_sent_mib();
    if (mesh_.device().is_cuda())
      report.gpu_mib = cuda::peak_memory(mesh_.device()).reserved_bytes >> 20;
    write(report);
  }

  void evaluate(StepReport& report) {
    const Evaluation found = trainer_.evaluate(*valid_, config_.eval.batches);
    report.eval_loss = found.loss;
    report.eval_accuracy = found.accuracy;
  }

  bool due(int64_t every) const { return every > 0 && step_ % every == 0; }

  void save() {
    checkpoint::State state = trainer_.state();
    state.extra["config"] = config::to_toml(config_);
    state.extra["data"] = data_facts_;
    if (!base_.empty()) state.extra["lora"]["base"]["content"] = base_;
    if (trainer_.replicas() && config_.sync.seconds > 0)
      state.extra["used_samples"] = used_samples_;
    saver_.save(step_, state);
    last_saved_ = step_;
    files_.log(fmt::format("saves step {}", step_));
  }

  void write_trace() {
    world_.set_trace(nullptr);
    const auto parts = comm::gather_texts(world_, trace_->take(), 0);
    if (!leads()) return;
    try {
      format::write_file(config_.run.dir + "/trace.json", core::Trace::merged(parts));
    } catch (const std::exception& error) {  // the run itself succeeded
      fmt::print(stderr, "trace.json was not written: {}\n", error.what());
    }
  }

  std::optional<int> finish(double stop) {
    if (last_saved_ != step_ || step_ == 0) {
      saver_.set_after_failure("");  // no training goes on after the last one
      save();
    }
    const auto problem = saver_.wait();
    world_.barrier();  // rank 0 has renamed the checkpoint, before any rank reports the end
    const bool switches = step_ == until_ && step_ < steps_ && stop == 0;
    if (problem)
      throw Error(fmt::format(
          "the {} could not be written: {}",
          switches ? "checkpoint from which the replicas of post-local go on" : "last checkpoint",
          *problem));
    if (switches) return std::nullopt;
    if (trace_) write_trace();
    files_.log(fmt::format("ends at step {}", step_));
    const std::string end =
        fmt::format("{} at step {}; {}/{}\n", step_ < steps_ ? "stopped" : "done", step_,
                    files_.checkpoints(), format::step_name(step_));
    if (leads())
      std::fputs(end.c_str(), stdout);  // stdout may be closed, which is not an error here
    return step_ < steps_ ? exit_code_of(stop) : 0;
  }

  const config::Config& config_;
  const comm::Communicator& world_;
  const StopSignals& signals_;
  // Before anything collective, so that every rank itself reports a bad file.
  std::shared_ptr<const data::Dataset> data_, valid_;
  core::Json data_facts_;
  std::string base_;  // of adapters: tells the weights of model.from from others
  Mesh mesh_;
  data::Order order_;
  int64_t steps_, until_;  // of the run, of the phase
  int64_t step_ = 0, last_saved_ = -1;
  RunFiles files_;
  std::shared_ptr<core::Trace> trace_;
  Trainer trainer_;
  checkpoint::Saver saver_;
  StepLines lines_;
  std::deque<StepReport> started_;   // of steps whose results are not there yet
  Clock::time_point reported_ = {};  // when the last line was written
  int64_t used_samples_ = 0;         // by blocks that end by the clock
};

}  // namespace

std::optional<int> run_phase(const config::Config& config, const comm::Communicator& world,
                             const ModelFactory& model, const StopSignals& signals, Phase phase) {
  Run one(config, world, model, signals, phase);
  try {
    return one.train();
  } catch (const CommError& error) {  // other ranks are gone, so the checkpoint cannot be completed
    one.log(std::string("failed: ") + error.what());
    throw;
  } catch (const std::exception& error) {
    one.log(std::string("failed: ") + error.what());
    one.let_save_end();
    throw;
  }
}

}  // namespace trireme::train
