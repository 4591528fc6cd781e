#include "trireme/verify/compared_run.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "trireme/checkpoint/resume.h"
#include "trireme/data/loader.h"
#include "trireme/train/datasets.h"

namespace trireme::verify {

namespace {

/// The first samples of a dataset.
class FirstOf final : public data::Dataset {
 public:
  FirstOf(const data::Dataset& all, int64_t count)
      : all_(all), size_(std::min(all.size(), count)) {}
  int64_t size() const override { return size_; }
  data::Sample get(int64_t index) const override { return all_.get(index); }

 private:
  const data::Dataset& all_;
  int64_t size_;
};

}  // namespace

ComparedRun::ComparedRun(const TrainingSetup& setup, const config::Config& config, const Mesh& mesh,
                         Options options)
    : setup_(setup),
      config_(config),
      mesh_(mesh),
      part_(train::part_of(setup.data, config, mesh_)),
      order_(static_cast<uint64_t>(config.run.seed), *setup.data, config.batch.global),
      steps_(options.steps),
      trainer_(config, mesh_, train::build(setup.model, mesh_), options.steps,
               {.cut = options.cut}),
      plant_(options.plant, trainer_, mesh_),
      recorder_(trainer_, mesh_) {
  trainer_.watch([this] { plant_.touch_gradients(); },
                 [this](double weight) { recorder_.record_gradients(weight); });
}

int64_t ComparedRun::batch_of(int64_t step) const {
  const int64_t last = order_.batches_per_epoch() - 1;
  const bool is_short = static_cast<int64_t>(order_.batch(last).size()) < config_.batch.global;
  return step == steps_ && steps_ > 1 && is_short ? last : step - 1;
}

std::vector<TensorRecord> ComparedRun::step(int64_t step) {
  const comm::Communicator replicas = mesh_.samples();
  const int64_t number = batch_of(step);
  data::Batch batch =
      data::Loader::read(*part_, order_, plant_.block(replicas.rank(), replicas.size()),
                         replicas.size(), plant_.batch_number(number, order_));
  plant_.touch(batch);
  const auto whole = static_cast<int64_t>(order_.batch(number).size());
  recorder_.begin(batch, even_range(whole, replicas.size(), replicas.rank()).begin,
                  train::positions_of(config_, mesh_), trainer_.num_micros(batch));
  const auto result = trainer_.step(step, batch);
  if (result.skipped)
    throw Error(fmt::format(
        "step {} is not finite in float16 at a loss scale of {}; lower precision.loss_scale", step,
        *result.loss_scale));
  auto records = recorder_.end(result);
  plant_.touch_weights(step);
  return records;
}

std::vector<TensorRecord> ComparedRun::end() {
  auto records = state();
  const FirstOf some(*setup_.data, config_.batch.global + 1);
  records.push_back(scalar(TensorRole::Evaluation, "evaluation", trainer_.evaluate(some, 0).loss));
  return records;
}

void ComparedRun::load(const std::string& folder) {
  const auto saved = checkpoint::load_newest(
      folder, mesh_.world(),
      [&, own = trainer_.own_state()](format::Checkpoint& one) { trainer_.load(one, own); });
  TORCH_INTERNAL_ASSERT(saved.has_value(), "the checkpoint that was just written is gone");
  trainer_.restore();
}

}  // namespace trireme::verify
