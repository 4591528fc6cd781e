#include "trireme/train/timed_training.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "trireme/train/datasets.h"
#include "trireme/train/step_lines.h"

namespace trireme::train {

TimedTraining::TimedTraining(const config::Config& config,
                             std::shared_ptr<const data::Dataset> dataset, Trainer& trainer,
                             RunPosition begin)
    : trainer_(trainer),
      meshes_(*trainer.replicas()),
      rows_(config.batch.global / meshes_.count()),
      order_(static_cast<uint64_t>(config.run.seed), *dataset, rows_),
      by_step_(static_cast<uint64_t>(config.run.seed), *dataset, config.batch.global),
      step_(begin.step),
      steps_(begin.steps),
      end_(order_.batches_in(by_step_.samples_before(steps_))),
      used_(std::min(end_, order_.batches_in(begin.used_samples))),
      blocks_(part_of(std::move(dataset), config, meshes_.replica), order_, meshes_,
              std::chrono::duration<double>(config.sync.seconds), {used_, end_ - used_}) {}

double TimedTraining::train_block(double wish_to_stop) {
  blocks_.begin_block();
  last_ = {};
  while (const auto batch = blocks_.next()) {
    trainer_.place(by_step_.batches_in(order_.samples_before(batch->number)));
    last_ = trainer_.step(batch->number + 1, *batch);
  }
  meeting_ = trainer_.meet(wish_to_stop);
  used_ = blocks_.used(trainer_.mesh().world());
  loss_ += meeting_.loss;
  weight_ += meeting_.weight;
  return meeting_.stop;
}

std::optional<StepReport> TimedTraining::take_report() {
  const int64_t step =
      is_over() ? steps_ : std::min(by_step_.batches_in(used_samples()), steps_ - 1);
  if (step == step_) return std::nullopt;
  step_ = step;
  StepReport report;
  report.step = step;
  fill(report, last_);
  report.weight = std::exchange(weight_, 0);
  report.block_loss = std::exchange(loss_, 0) / report.weight;
  report.loss = *report.block_loss;
  report.drift = meeting_.drift;
  report.meeting_ms = meeting_.wait_ms;
  return report;
}

}  // namespace trireme::train
