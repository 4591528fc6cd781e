#include "trireme/train/run.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <sstream>
#include <vector>

#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/comm/texts.h"
#include "trireme/config/load.h"
#include "trireme/config/mesh.h"
#include "trireme/config/text.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/units.h"
#include "trireme/cuda/graph.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"
#include "trireme/train/datasets.h"
#include "trireme/train/lines_file.h"
#include "trireme/train/memory.h"
#include "trireme/train/progress.h"
#include "trireme/train/reducer_state.h"
#include "trireme/train/run_files.h"
#include "trireme/train/timed_blocks.h"
#include "trireme/train/trainer.h"
#include "trireme/train/world.h"

namespace trireme::train {

namespace {

using Clock = std::chrono::steady_clock;

// What a rank adds to a sum over all ranks when it was asked to stop. From the sum, every rank can
// tell the largest value that a rank added, with up to a million ranks.
constexpr double kInterrupted = 1, kClosed = 1e6, kTerminated = 1e12, kHungUp = 1e18;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

int64_t steps_of(const config::Config& config, const data::Order& order) {
  return config.run.epochs > 0 ? config.run.epochs * order.batches_per_epoch() : config.run.steps;
}

/// Post-local runs have two phases: replicas in lockstep, then on their own. Others have the
/// second.
enum class Phase : uint8_t { Lockstep, Main };

config::Config config_of(Phase phase, config::Config config) {
  if (phase == Phase::Lockstep) config.sync = {};
  return config;
}

/// One run, from the step that it has reached to its last step, or to the end of a phase.
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
        order_(static_cast<uint64_t>(config.run.seed), data_->size(), config.batch.global),
        steps_(steps_of(config, order_)),
        until_(phase == Phase::Lockstep ? std::min(steps_, config.sync.after) : steps_),
        files_(config, world),
        trace_(make_trace()),
        trainer_(config_of(phase, config), mesh_, build(model, mesh_), steps_,
                 {known_cut(), trace_}),
        saver_(files_.checkpoints(), mesh_, config.checkpoint.keep) {
    world_.set_trace(trace_);
  }

  /// Returns the exit code; nothing if only the phase is over.
  std::optional<int> train() {
    check_same_data();
    resume();
    if (step_ >= steps_ && step_ > 0) {
      if (leads())
        fmt::print("already at step {} ({}): raise {}, or use another run.dir\n", step_,
                   config_.run.epochs > 0
                       ? fmt::format("run.epochs = {} are {} steps", config_.run.epochs, steps_)
                       : fmt::format("run.steps = {}", steps_),
                   config_.run.epochs > 0 ? "run.epochs" : "run.steps");
      return 0;
    }
    announce();
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
    std::string text = "[]";
    if (leads()) {
      try {
        const auto& [from, folder] = config_.checkpoint.resume;
        const bool newest = from == From::Newest;
        const auto there = format::list(files_.checkpoints());
        if (from == From::Folder || (newest && !there.empty())) {
          const format::Checkpoint saved(
              newest ? files_.checkpoints() + "/" + format::step_name(there.back()) : folder);
          text = saved.index().extra.value("pipeline_cut", core::Json::array()).dump();
        }
      } catch (const std::exception&) {  // `resume` will say what is wrong with it
      }
    }
    const core::Json cut = core::parse_json(comm::broadcast_text(world_, text, 0), "the cut");
    return cut.get<parallel::StageSizes>();
  }

  /// Loads the newest complete checkpoint, if there is one.
  void resume() {
    const auto& [from, folder] = config_.checkpoint.resume;
    if (from == From::Nothing) return refuse_newer(-1);
    const auto load = [&, own = trainer_.own_state()](format::Checkpoint& one) {
      check_fits(one);
      trainer_.load(one, own);
    };
    std::optional<format::Checkpoint> saved;
    if (from == From::Newest) {
      saved = checkpoint::load_newest(files_.checkpoints(), world_, load);
      if (!saved) return;
    } else {
      saved = checkpoint::open(folder);
      refuse_newer(saved->index().step);
      load(*saved);
    }
    world_.barrier();  // all ranks have loaded, before anything is removed
    const std::string note = trainer_.restore();
    restore_reducer(trainer_.attached(), *saved);
    step_ = saved->index().step;
    used_samples_ = saved->index().extra.value("used_samples", step_ * config_.batch.global);
    if (step_ < config_.sync.after && until_ == steps_ && trainer_.replicas())
      throw CheckpointError(fmt::format(
          "the newest checkpoint was damaged, and step {} before it is of the lockstep phase "
          "(sync.after = {}): start again to continue from there",
          step_, config_.sync.after));
    last_saved_ = from == From::Newest ? step_ : -1;
    files_.log(fmt::format("continues from {}", saved->folder()));
    if (leads()) fmt::print("continues from {}\n", saved->folder());
    if (note.empty()) return;
    files_.log(note);
    if (leads()) fmt::print("{}\n", note);
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

  /// Throws ConfigError, with the first difference, if the checkpoint belongs to another run.
  void check_fits(const format::Checkpoint& saved) const {
    const core::Json& extra = saved.index().extra;
    const auto before = config::parse(extra.value("config", ""), saved.folder());
    auto difference = config::first_difference(before, config_);
    if (!difference && !config_.data.allow_change)
      difference = extra.contains("data") ? data_difference(extra.at("data"), data_facts_)
                                          : config::data_difference(before, config_);
    if (difference)
      throw ConfigError(fmt::format(
          "cannot continue {}: {}; set it back or use another run.dir",
          config_.checkpoint.resume.from == From::Newest ? config_.run.dir : saved.folder(),
          *difference));
  }

  /// Throws if the folder holds a later checkpoint: the run would later resume from that one.
  void refuse_newer(int64_t step) const {
    const auto there = format::list(files_.checkpoints());
    if (!there.empty() && there.back() > step)
      throw ConfigError(fmt::format(
          "checkpoint.resume = \"{}\": {} holds step {} already; remove it, or choose another "
          "run.dir",
          to_string(config_.checkpoint.resume), files_.checkpoints(), there.back()));
  }

  void announce() {
    files_.begin(step_);
    files_.log(fmt::format("{} ranks over {}, step {} of {}", world_.size(), world_.backend(),
                           step_, steps_));
    if (mesh_.device().is_cuda())
      files_.log(trainer_.graph_obstacle().empty()
                     ? "steps are replayed as a CUDA graph"
                     : fmt::format("no CUDA graph: {}", trainer_.graph_obstacle()));
    if (!leads()) return;
    const bool cut = mesh_.degrees().replica != world_.size();
    const int64_t batch = std::min(config_.batch.global, data_->size());
    fmt::print("{}, {:.2f}M parameters, {} rank{}{} over {}; batches of {} sample{}; {}\n",
               config_.model.kind, static_cast<double>(trainer_.num_parameters()) / 1e6,
               world_.size(), world_.size() == 1 ? "" : "s",
               cut ? fmt::format(" ({})", to_string(mesh_.degrees())) : "", world_.backend(), batch,
               batch == 1 ? "" : "s", config_.run.dir);
    warn_of_small_batches();
    std::fputs(trainer_.attached().description().c_str(), stdout);
    announce_meetings();
    if (data_->floor())
      fmt::print("lowest possible loss: {:.4f} nats (the data's entropy)\n", *data_->floor());
    std::fflush(stdout);
  }

  void announce_meetings() const {
    if (!trainer_.replicas()) return;
    const config::Sync& sync = config_.sync;
    const int replicas = trainer_.replicas()->count();
    fmt::print("{} replicas train on their own and meet every {} ({})\n", replicas,
               sync.seconds > 0  ? fmt::format("{} s", sync.seconds)
               : sync.every == 1 ? std::string("step")
                                 : fmt::format("{} steps", sync.every),
               to_string(sync.kind));
    const core::Log log(0, "sync");
    if (replicas == 1) log.warning("there is one replica, which meets nobody: set mesh.replica=2");
    if (sync.fragments > 1 || sync.delay > 0)
      log.warning(
          "fragments that have not met at the end of the run are not in its common weights");
    else if (sync.seconds == 0 && steps_ % sync.every != 0)
      log.warning(fmt::format(
          "run.steps = {} is no multiple of sync.every = {}: the last {} steps will not "
          "be in the common weights",
          steps_, sync.every, steps_ % sync.every));
  }

  void warn_of_small_batches() const {
    const core::Log log(0, "data");
    const int64_t batch = std::min(config_.batch.global, data_->size());
    if (batch < config_.batch.global)
      log.warning(fmt::format(
          "the data has {} sample{} of model.seq = {}, fewer than batch.global = {}: every step "
          "sees {}",
          batch, batch == 1 ? "" : "s", config_.model.seq, config_.batch.global,
          batch == 1 ? "the same one" : "all of them"));
    const int64_t ranks = mesh_.samples().size();
    if (batch < ranks)
      log.warning(fmt::format("a batch has {} samples for {} ranks: {} of them have nothing to do",
                              batch, ranks, ranks - batch));
  }

  /// Returns the sum of the ranks' requests to stop.
  double loop() {
    const comm::Communicator samples = mesh_.samples();
    data::Loader loader(data_, order_, samples.rank(), samples.size(), step_);
    if (leads()) progress_.emplace(step_, steps_, config_.log.every);
    double stop = 0;
    reported_ = Clock::now();
    take_sent_mib();
    while (step_ < until_ && stop == 0) {
      const auto asked = Clock::now();
      const data::Batch batch = loader.next();
      const double data_ms = milliseconds_since(asked);
      stop = trainer_.start(++step_, batch, wish_to_stop());
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
    if (stop != 0 && progress_ && step_ < steps_)
      progress_->say(fmt::format("asked to stop: saving step {}", step_));
    progress_.reset();
    return stop;
  }

  /// The same with blocks that end by the clock: a line for each meeting, in steps of batch.global
  /// samples.
  double loop_by_time() {
    const parallel::ReplicaMeshes& replicas = *trainer_.replicas();
    const int64_t count = replicas.count();
    const data::Order order(static_cast<uint64_t>(config_.run.seed), data_->size(),
                            config_.batch.global / count);
    const int64_t end =
        config_.run.epochs > 0 ? config_.run.epochs * order.batches_per_epoch() : steps_ * count;
    const int64_t each = config_.batch.global / count, first = std::min(end, used_samples_ / each);
    TimedBlocks blocks(data_, order, replicas, std::chrono::duration<double>(config_.sync.seconds),
                       {first, end - first});
    if (leads()) progress_.emplace(step_, steps_, config_.log.every);
    double stop = 0;
    reported_ = Clock::now();
    take_sent_mib();
    for (int64_t used = first; used < end && stop == 0;) {
      blocks.begin_block();
      StepResult last;
      while (const auto batch = blocks.next()) {
        trainer_.place(batch->number / count);
        last = trainer_.step(batch->number + 1, *batch);
      }
      const parallel::Meeting meeting = trainer_.meet(wish_to_stop());
      stop = meeting.stop;
      used = blocks.used(world_);
      used_samples_ = used * each;
      report_block(meeting, last, used == end ? steps_ : std::min(used / count, steps_ - 1));
    }
    progress_.reset();
    return stop;
  }

  void report_block(const parallel::Meeting& meeting, const StepResult& last, int64_t step) {
    const auto crosses = [&](int64_t every) { return every > 0 && step / every > step_ / every; };
    const bool saves = crosses(config_.checkpoint.every) && step < steps_ && meeting.stop == 0;
    const bool evaluates = crosses(config_.eval.every);
    block_.loss += meeting.loss;
    block_.weight += meeting.weight;
    if (step == step_) return;  // less than batch.global samples: they count in the next line
    step_ = step;
    const parallel::Meeting block = std::exchange(block_, {});
    StepReport report;
    report.step = step_;
    fill(report, last);
    report.loss = *(report.block_loss = block.loss / block.weight);
    report.weight = block.weight;
    report.drift = meeting.drift;
    report.meeting_ms = meeting.wait_ms;
    report.step_ms = milliseconds_since(reported_);
    report.tokens_per_s = block.weight / report.step_ms * 1e3;
    if (evaluates) report.eval_loss = trainer_.evaluate(*valid_, config_.eval.batches);
    if (progress_) {
      report.pss_mib = files_.pss_mib();
      report.sent_mib = take_sent_mib();
      files_.add(report, order_);
      progress_->show(report);
      if (progress_->is_closed()) signals_.stop_by(SIGPIPE);
    }
    reported_ = Clock::now();
    if (saves) save();
  }

  /// What the reducer has decided, such as which buckets are worth compressing.
  void tell_news() {
    std::istringstream news(trainer_.attached().reducer().take_news());
    for (std::string line; std::getline(news, line);) {
      files_.log(line);
      if (progress_) progress_->say(line);
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
    if (newest && due(config_.eval.every))
      report.eval_loss = trainer_.evaluate(*valid_, config_.eval.batches);
    if (progress_) {
      report.pss_mib = files_.pss_mib();
      if (world_.size() > 1) report.sent_mib = take_sent_mib();
      if (mesh_.device().is_cuda())
        report.gpu_mib = cuda::peak_memory(mesh_.device()).reserved_bytes >> 20;
      files_.add(report, order_);
      progress_->show(report);
      if (progress_->is_closed()) signals_.stop_by(SIGPIPE);
    }
  }

  double wish_to_stop() const {
    const int signal = signals_.asked();
    if (signal == 0) return 0;
    if (signal == SIGHUP) return kHungUp;
    return signal == SIGTERM ? kTerminated : signal == SIGPIPE ? kClosed : kInterrupted;
  }

  /// The exit code of a run that was asked to stop before its end.
  static int code_of(double stop) {
    if (stop >= kHungUp) return 128 + SIGHUP;
    return stop >= kTerminated ? 128 + SIGTERM : stop >= kClosed ? 128 + SIGPIPE : 0;
  }

  bool due(int64_t every) const { return every > 0 && step_ % every == 0; }

  void fill(StepReport& report, const StepResult& result) const {
    report.loss = result.loss;
    report.weight = result.weight;
    report.grad_norm = result.grad_norm;
    report.lr = result.lr;
    report.skipped = result.skipped;
    report.loss_scale = result.loss_scale;
    report.floor = data_->floor();
    if (result.meeting) {
      report.block_loss = result.meeting->loss / result.meeting->weight;
      report.drift = result.meeting->drift;
      report.meeting_ms = result.meeting->wait_ms;
    }
  }

  /// MiB that this rank has sent since it was last asked.
  double take_sent_mib() {
    const int64_t now = world_.traffic().sent_bytes;
    return static_cast<double>(now - std::exchange(sent_bytes_, now)) / (1 << 20);
  }

  void save() {
    checkpoint::State state = trainer_.state();
    state.extra["config"] = config::to_toml(config_);
    state.extra["data"] = data_facts_;
    if (config_.sync.seconds > 0) state.extra["used_samples"] = used_samples_;
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
    if (problem) throw Error("the last checkpoint could not be written: " + *problem);
    if (step_ == until_ && step_ < steps_ && stop == 0) return std::nullopt;
    if (trace_) write_trace();
    files_.log(fmt::format("ends at step {}", step_));
    const std::string end =
        fmt::format("{} at step {}; {}/{}\n", step_ < steps_ ? "stopped" : "done", step_,
                    files_.checkpoints(), format::step_name(step_));
    if (leads())
      std::fputs(end.c_str(), stdout);  // stdout may be closed, which is not an error here
    return step_ < steps_ ? code_of(stop) : 0;
  }

  const config::Config& config_;
  const comm::Communicator& world_;
  const StopSignals& signals_;
  // Before anything collective, so that every rank itself reports a bad file.
  std::shared_ptr<const data::Dataset> data_, valid_;
  core::Json data_facts_;
  Mesh mesh_;
  data::Order order_;
  int64_t steps_, until_;  // of the run, of the phase
  int64_t step_ = 0, last_saved_ = -1;
  RunFiles files_;
  std::shared_ptr<core::Trace> trace_;
  Trainer trainer_;
  checkpoint::Saver saver_;
  std::optional<Progress> progress_;  // on rank 0, while the loop runs
  std::deque<StepReport> started_;    // of steps whose results are not there yet
  Clock::time_point reported_ = {};   // when the last line was written
  int64_t sent_bytes_ = 0;            // until then
  int64_t used_samples_ = 0;          // by blocks that end by the clock
  parallel::Meeting block_ = {};      // of meetings that have no line yet
};

/// The step of the checkpoint that the run will continue from; 0 if there is none.
int64_t reached_step(const config::Config& config, const comm::Communicator& world) {
  if (config.sync.after == 0) return 0;
  int64_t step = 0;
  if (world.rank() == 0) {
    try {
      const auto& [from, folder] = config.checkpoint.resume;
      const auto there = format::list(config.run.dir + "/checkpoints");
      if (from == config::Resume::From::Folder)
        step = format::Checkpoint(folder).index().step;
      else if (from == config::Resume::From::Newest && !there.empty())
        step = there.back();
    } catch (const std::exception&) {  // `resume` will say what is wrong with it
    }
  }
  return std::stoll(comm::broadcast_text(world, std::to_string(step), 0));
}

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

}  // namespace

int run(const config::Config& config, const comm::Communicator& world, const ModelFactory& model,
        const StopSignals& signals) {
  config::refuse_unbuilt(config);
  if (reached_step(config, world) >= config.sync.after)
    return *run_phase(config, world, model, signals, Phase::Main);
  if (const auto code = run_phase(config, world, model, signals, Phase::Lockstep)) return *code;
  // The second phase begins at the checkpoint where the first has ended.
  config::Config rest = config;
  rest.checkpoint.resume = {};
  return *run_phase(rest, world, model, signals, Phase::Main);
}

}  // namespace trireme::train
