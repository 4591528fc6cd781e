#include "trireme/train/server_worker.h"

#include <chrono>
#include <cmath>
#include <optional>

#include "trireme/comm/texts.h"
#include "trireme/config/mesh.h"
#include "trireme/core/error.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/data_order.h"
#include "trireme/train/batch_report.h"
#include "trireme/train/datasets.h"
#include "trireme/train/memory.h"
#include "trireme/train/milliseconds.h"
#include "trireme/train/trainer.h"
#include "trireme/train/world.h"

namespace trireme::train {

namespace {

using Clock = std::chrono::steady_clock;

/// What the first rank of a worker has asked for, as the others hear of it.
struct WorkNote {
  bool is_over = false;
  ps::Task task = 0;
  ps::Clock clock = 0;
  uint64_t view_version = 0;
  ps::Life life = 0;
  ps::View view = {};  ///< in which that life has work
  template <class Archive>
  void fields(Archive& archive) {
    archive(is_over, task, clock, view_version, life, view);
  }
};

class Worker {
 public:
  Worker(const config::Config& config, const comm::Communicator& ranks, const ModelFactory& model,
         ps::Client& client)
      : config_(config),
        client_(client),
        job_(client.job()),
        data_(make_dataset(config)),
        valid_(config.eval.every > 0 ? make_valid_dataset(config) : nullptr),
        mesh_(ranks, config::degrees_of(config, ranks.size()), pick_device(config, ranks)),
        order_(static_cast<uint64_t>(config.run.seed), *data_, config.batch.global),
        reducer_(std::make_shared<ps::PushReducer>(mesh_, client)),
        trainer_(config, mesh_, build(model, mesh_),
                 static_cast<int64_t>(job_.batches() / job_.workers),
                 {.reducer = reducer_,
                  .on_servers =
                      [&](parallel::Attached& attached) {
                        return std::make_unique<ps::ServerParallel>(attached, client, reducer_);
                      },
                  .workers = static_cast<int>(job_.workers)}) {}

  void run() {
    while (const auto work = next()) {
      try {
        for (std::size_t step = 0; step < work->batches.size(); ++step) run_step(*work, step);
        servers().end();
        report();
        if (leads()) client_.done(*work);
      } catch (const ps::LifeLost&) {  // its work is handed out again
        waiting_.reset();
      }
    }
  }

 private:
  bool leads() const { return mesh_.world().rank() == 0; }
  ps::ServerParallel& servers() const { return *trainer_.servers(); }

  /// The next work, on all ranks.
  std::optional<ps::Client::Work> next() {
    WorkNote note;
    if (leads()) note = ask();
    if (mesh_.world().size() > 1) {
      const std::string text =
          comm::broadcast_text(mesh_.world(), leads() ? ps::to_bytes(note) : "", 0);
      if (!leads()) {
        note = ps::from_bytes<WorkNote>(text);
        if (!note.is_over) client_.follow(note.life, note.view);
      }
    }
    if (note.is_over) return std::nullopt;
    return ps::Client::Work{.task = note.task,
                            .batches = ps::batches_of(job_, note.task),
                            .clock = note.clock,
                            .view_version = note.view_version,
                            .life = note.life};
  }

  WorkNote ask() {
    for (;;) {
      try {
        const auto work = client_.next();
        if (!work) return {.is_over = true};
        return {.task = work->task,
                .clock = work->clock,
                .view_version = work->view_version,
                .life = work->life,
                .view = client_.view()};
      } catch (const ps::LifeLost&) {  // and a new one begins
      }
    }
  }

  void run_step(const ps::Client::Work& work, std::size_t index) {
    servers().begin(work, index);
    report();
    const ps::Batch number = work.batches[index];
    const auto step = static_cast<int64_t>(number / job_.workers);
    const auto lane = static_cast<int>(number % job_.workers);
    const comm::Communicator& samples = mesh_.samples();
    const auto asked = Clock::now();
    const data::Batch batch = data::Loader::read(
        *part_of(data_, config_, mesh_), order_, lane * samples.size() + samples.rank(),
        static_cast<int>(job_.workers) * samples.size(), step);
    const double data_ms = milliseconds_since(asked);
    trainer_.place(step);
    const StepResult result = trainer_.step(step + 1, batch);
    waiting_ = BatchReport{.loss = result.weight > 0 ? result.loss * result.weight : 0,
                           .weight = result.weight,
                           .grad_norm = result.grad_norm,
                           .lr = result.lr,
                           .data_ms = data_ms};
    const bool evaluates = config_.eval.every > 0 && (step + 1) % config_.eval.every == 0;
    if (!evaluates || lane != 0) return;
    servers().end();
    servers().read(work.clock + index + 1, work.view_version);
    const Evaluation found = trainer_.evaluate(*valid_, config_.eval.batches);
    waiting_->eval_loss = found.loss;
    waiting_->eval_accuracy = found.accuracy;
  }

  /// Tells the manager what came of the step whose push was waited for last.
  void report() {
    const auto outcome = servers().take_outcome();
    if (!outcome || !waiting_) return;
    BatchReport report = *std::exchange(waiting_, {});
    if (!leads()) return;
    if (job_.in_lanes()) {
      report.loss = outcome->totals.loss;
      report.weight = outcome->totals.weight;
      report.grad_norm = outcome->totals.norm;
    }
    if (job_.in_lanes() && config_.check.finite && !std::isfinite(outcome->totals.norm))
      throw Error(fmt::format(
          "step {}: the gradient of all workers together is not finite, and nothing was updated; "
          "lower optim.lr, or continue from the last checkpoint",
          outcome->batch / job_.workers + 1));
    report.missed = static_cast<int64_t>(outcome->missed);
    report.repeated = outcome->repeated;
    report.pss_mib = pss_mib_now();
    const int64_t sent = client_.sent_bytes();
    report.sent_mib = static_cast<double>(sent - std::exchange(sent_bytes_, sent)) / (1 << 20);
    client_.report(outcome->batch, report.to_text());
  }

  /// Reading it takes a millisecond.
  int64_t pss_mib_now() {
    const auto now = Clock::now();
    if (now - pss_at_ > std::chrono::seconds(1)) {
      pss_at_ = now;
      pss_mib_ = pss_mib();
    }
    return pss_mib_;
  }

  const config::Config& config_;
  ps::Client& client_;
  const ps::JobConfig& job_;
  std::shared_ptr<const data::Dataset> data_, valid_;
  Mesh mesh_;
  data::Order order_;
  std::shared_ptr<ps::PushReducer> reducer_;
  Trainer trainer_;
  std::optional<BatchReport> waiting_;  ///< of the step that was pushed last
  int64_t sent_bytes_ = 0;
  Clock::time_point pss_at_{};
  int64_t pss_mib_ = 0;
};

}  // namespace

void work_on_servers(const config::Config& config, const comm::Communicator& ranks,
                     const ModelFactory& model, ps::Client& client) {
  Worker(config, ranks, model, client).run();
}

}  // namespace trireme::train
