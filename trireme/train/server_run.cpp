#include "trireme/train/server_run.h"

#include <fmt/format.h>
#include <signal.h>

#include <ATen/Parallel.h>

#include <optional>

#include "trireme/config/optimizer.h"
#include "trireme/config/text.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"
#include "trireme/ps/role.h"
#include "trireme/train/datasets.h"
#include "trireme/train/given_values.h"
#include "trireme/train/resume_point.h"
#include "trireme/train/server_job.h"
#include "trireme/train/server_lines.h"
#include "trireme/train/server_worker.h"
#include "trireme/train/world.h"
#include "trireme/worker/buffer_table.h"

namespace trireme::train {

namespace {

using ResumeFrom = config::Resume::From;

uint32_t num_workers(const config::Config& config) {
  return static_cast<uint32_t>(std::max<int64_t>(1, config.mesh.replica));
}

ps::JobRole role_of(const config::Config& config) {
  const auto role = ps::role_of_environment();
  if (!role)
    throw ConfigError(fmt::format(
        "sync.kind = \"{}\" needs a manager and servers, which `trireme train` starts: run it "
        "without another launcher",
        to_string(config.sync.kind)));
  const uint32_t workers = num_workers(config);
  const auto servers = static_cast<uint32_t>(config.sync.servers);
  const auto ranks = static_cast<uint32_t>(degrees_of_worker(config).world());
  if (role->servers != servers || role->workers != workers || role->worker_ranks != ranks)
    throw ConfigError(fmt::format(
        "the launcher started {} servers and {} workers of {} ranks, but the configuration asks "
        "for {}, {} and {}; let `trireme train` start them",
        role->servers, role->workers, role->worker_ranks, servers, workers, ranks));
  return *role;
}

/// The whole model, without memory.
std::shared_ptr<nn::ModelImpl> describe_model(const config::Config& config,
                                              const WholeModelFactory& whole) {
  const nn::Deferred no_memory;
  const config::Config worker = config_of_worker(config);
  auto model = whole(worker, degrees_of_worker(config));
  const bool wide = config.precision.compute == config::Dtype::Float64;
  nn::move_to(*model, wide ? at::kDouble : at::kFloat, at::kCPU);
  nn::initialize(*model, static_cast<uint64_t>(config.run.seed));
  return model;
}

/// One process of the job.
class Process {
 public:
  Process(const config::Config& config, const WholeModelFactory& whole)
      : config_(config),
        role_(role_of(config)),
        data_(make_dataset(config)),
        order_(static_cast<uint64_t>(config.run.seed), *data_, config.batch.global),
        steps_(find_steps()),
        job_(make_job(whole)) {}

  int run(const WorkerModelFactory& model) {
    if (role_.node.role == ps::Role::Worker) return work(model);
    ::signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of write
    at::set_num_threads(1);      // each thread of a server has ranges of its own
    if (role_.node.role == ps::Role::Manager) return manage();
    ps::serve(job_, role_, {.snapshots = snapshots()});
    return 0;
  }

 private:
  /// The launcher has chosen the checkpoint, so that a process that starts later chooses alike.
  ServerSteps find_steps() const {
    ServerSteps steps{.steps = config_.run.epochs > 0
                                   ? config_.run.epochs * order_.batches_per_epoch()
                                   : config_.run.steps};
    const auto& [from, folder] = config_.checkpoint.resume;
    if (from != ResumeFrom::Folder) return steps;
    const format::Checkpoint saved(folder);
    check_fits(saved, config_, facts_of(*data_));
    steps.saved = saved.index().step;
    steps.first = std::min(steps.saved, steps.steps);
    steps.start_from = folder;
    return steps;
  }

  ps::JobConfig make_job(const WholeModelFactory& whole) const {
    return server_job(config_, *describe_model(config_, whole), steps_, role_);
  }

  std::shared_ptr<const ps::SnapshotFiles> snapshots() const {
    return std::make_shared<ps::SnapshotFiles>(
        job_, ps::SnapshotFiles::Options{
                  .folder = checkpoints_of(config_),
                  .keep = config_.checkpoint.keep,
                  .extra = [this](const ps::SnapshotOrder& order) { return extra_of(order); }});
  }

  template <class Visit>
  void for_each_weight(Visit visit) const {
    for (const ps::TableConfig& table : job_.tables)
      for (const Piece& piece : table.pieces)
        if (!ps::holds_buffers(table)) visit(piece);
  }

  /// As a run without servers would say it.
  core::Json extra_of(const ps::SnapshotOrder& order) const {
    core::Json counts = core::Json::object();
    for_each_weight([&](const Piece& piece) { counts[piece.name] = order.step; });
    return {{"config", config::to_toml(config_)},
            {"data", facts_of(*data_)},
            {"optimizer",
             {{"kind", to_string(config::updating_optimizer(config_))}, {"steps", counts}}},
            {"update", {{"updates", order.step}, {"skipped", 0}}},
            {"ps", {{"workers", job_.workers}, {"ranges", job_.ranges}}}};
  }

  int manage() {
    const bool goes_on = core::env_int("TORCHELASTIC_RESTART_COUNT").value_or(0) > 0;
    const bool is_done = steps_.first > 0 && steps_.first >= steps_.steps;
    ServerLines lines(config_, job_, order_, data_->floor(), goes_on);
    if (goes_on)
      lines.files().log("the manager goes on");
    else if (is_done)
      lines.say(fmt::format("already at step {} (of {}): raise {}, or use another run.dir",
                            steps_.saved, steps_.steps,
                            config_.run.epochs > 0 ? "run.epochs" : "run.steps"));
    else
      announce();
    std::optional<int64_t> ended_at;
    ps::serve(job_, role_,
              {.snapshots = snapshots(),
               .last_snapshot = !is_done,
               .on_reports = [&](ps::Batch first,
                                 const auto& reports) { return lines.write(first, reports); },
               .on_over =
                   [&](const ps::SnapshotOrder& last) {
                     ended_at = is_done ? steps_.steps : static_cast<int64_t>(last.step);
                     lines.end();
                     if (!is_done) finish(*ended_at);
                   },
               .note = [&](const std::string& line) { lines.say(line); }});
    if (!ended_at) return 1;
    if (*ended_at >= steps_.steps) return 0;
    return 128 + (lines.is_closed() ? SIGPIPE : SIGTERM);
  }

  void announce() const {
    int64_t elems = 0;
    for_each_weight([&](const Piece& piece) { elems += piece.count; });
    const auto counted = [](int64_t count, const char* what) {
      return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
    };
    if (!steps_.start_from.empty())
      fmt::print("continues from {}\n", steps_.start_from);
    else if (!config_.model.from.empty())
      fmt::print("starts from {}\n", config_.model.from);
    fmt::print("{}, {:.2f}M parameters on {}, {}{}, {}; batches of {}; {}\n", config_.model.kind,
               static_cast<double>(elems) / 1e6, counted(job_.servers, "server"),
               counted(job_.workers, "worker"),
               job_.worker_ranks > 1 ? fmt::format(" of {} ranks", job_.worker_ranks) : "",
               consistency(), counted(std::min(config_.batch.global, data_->size()), "sample"),
               config_.run.dir);
    if (data_->floor())
      fmt::print("lowest possible loss: {:.4f} nats (the data's entropy)\n", *data_->floor());
    std::fflush(stdout);
  }

  std::string consistency() const {
    if (config_.sync.kind == config::SyncKind::Free) return "free";
    return config_.sync.staleness == 0
               ? "in lockstep"
               : fmt::format("at most {} step{} stale", config_.sync.staleness,
                             config_.sync.staleness == 1 ? "" : "s");
  }

  void finish(int64_t step) const {
    fmt::print("{} at step {}; {}/{}\n", step < steps_.steps ? "stopped" : "done", step,
               checkpoints_of(config_), format::step_name(step));
    std::fflush(stdout);
  }

  int work(const WorkerModelFactory& model) {
    const config::Config own = config_of_worker(config_);
    return with_ranks(own, [&](const comm::Communicator& ranks) {
      ps::Client client(ps::node_options(role_, job_), job_, role_.node.index);
      work_on_servers(
          own, ranks, [&](const Mesh& mesh) { return model(own, mesh); }, client);
      return 0;
    });
  }

  const config::Config& config_;
  const ps::JobRole role_;
  std::shared_ptr<const data::Dataset> data_;
  data::Order order_;
  const ServerSteps steps_;
  const ps::JobConfig job_;
};

}  // namespace

void check_servers(const config::Config& config, const WholeModelFactory& whole) {
  const auto model = describe_model(config, whole);
  const ResumeFrom from = config.checkpoint.resume.from;
  const bool is_new = from == ResumeFrom::Nothing ||
                      (from == ResumeFrom::Newest && format::list(checkpoints_of(config)).empty());
  if (is_new && !config.model.from.empty()) check_given_values(config, *model);
  try {
    server_job(config, *model, {},
               {.servers = static_cast<uint32_t>(config.sync.servers),
                .workers = num_workers(config),
                .worker_ranks = static_cast<uint32_t>(degrees_of_worker(config).world())});
  } catch (const MisuseError& error) {
    throw ConfigError(error.what());
  }
}

int run_on_servers(const config::Config& config, const WholeModelFactory& whole,
                   const WorkerModelFactory& model) {
  try {
    return Process(config, whole).run(model);
  } catch (const CommError& error) {  // of a lease that was lost, of another rank that is gone
    fmt::print(stderr, "{}\n", error.what());
    return kTryAgain;
  }
}

}  // namespace trireme::train
