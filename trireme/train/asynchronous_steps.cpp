// The steps of an asynchronous pipeline: each stage makes its update when it gets there, and the
// results are complete some steps later.
//
//   rank 0   start 1  start 2  start 3: update 1        start 4: update 2, take 1 ...
//   rank 1   start 1: update 1  start 2: update 2  ...
//   world                        sums of step 1 ........... are there when step 1 is taken
//
// No rank waits for another in the meantime: the sums of a step are started when the rank has made
// its update, and waited for when the step is taken.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

std::size_t Trainer::lag() const {
  if (is_asynchronous()) return attached_->asynchronous()->lag();
  return mesh_.device().is_cpu() ? 0 : 1;
}

/// Returns the wishes of the newest step whose results all ranks have: the same on every rank.
double Trainer::start_asynchronous(int64_t step, const data::Batch& batch, double wish_to_stop) {
  StartedStep started{.step = step, .stop = 0, .numbers = {}, .came = {}};
  started.wish = wish_to_stop;
  started_.push_back(std::move(started));
  attached_->run(cut(step, batch));
  if (started_.size() > lag()) {
    complete(started_.front());
    asked_to_stop_ = std::max(asked_to_stop_, started_.front().stop);
  }
  return asked_to_stop_;
}

/// Updates this rank's stage by the gradients of the oldest step that has not ended here.
void Trainer::update_stage(const parallel::Totals& totals) {
  const auto ending =
      std::ranges::find_if(started_, [](const StartedStep& one) { return !one.numbers.defined(); });
  TORCH_INTERNAL_ASSERT(ending != started_.end());
  optim::Update update = control_.decide(totals.on_device);
  const int delay = attached_->asynchronous()->delay();
  if (config_.pipeline.lr_by_delay && delay > 1) update.rate = update.rate / delay;
  optimizer_->step(update);
  attached_->updated(optimizer_->rounds_weights() ? parallel::Weights::Rounded
                                                  : parallel::Weights::Stale);
  ending->numbers = read_back(at::cat({totals.on_device, control_.numbers()}), ending->came);
  // The numbers that all ranks will decide by. Loss and weight are those of the step on every
  // stage: one rank gives them, and the others only say whether theirs are finite. All ranks of a
  // stage have its squares: together they give them once.
  const comm::Communicator& world = step_mesh().world();
  const int same_stage = world.size() / mesh_.degrees().pipe;
  const at::Tensor loss = totals.on_device.narrow(0, 0, 2);
  ending->sums = at::cat({world.rank() == 0 ? loss : loss - loss,
                          totals.on_device.narrow(0, 2, 1) / same_stage,
                          at::full({1}, ending->wish, totals.on_device.options())});
  ending->summed = world.all_reduce(ending->sums);
}

/// Waits until a step that has ended on this rank has ended on all.
void Trainer::complete(StartedStep& started) {
  TORCH_INTERNAL_ASSERT(started.numbers.defined());
  if (!started.sums.defined()) return;
  started.summed.wait();
  const at::Tensor sums = std::exchange(started.sums, at::Tensor()).cpu();
  if (started.came) started.came->synchronize();
  started.numbers.narrow(0, 0, 3).copy_(sums.narrow(0, 0, 3));
  started.stop = sums[3].item<double>();
}

/// The oldest step ends on all ranks. If too few were started after it, stages may differ in
/// whether they have ended it: then all of them drain, whether they have or not.
void Trainer::end_oldest() {
  if (started_.size() <= lag()) attached_->asynchronous()->drain();
  complete(started_.front());
}

void Trainer::check_all_taken(const char* what) const {
  core::check(!is_asynchronous() || started_.empty(),
              "Trainer::{}: {} steps were started and not taken; their updates are in flight", what,
              started_.size());
}

void Trainer::check_same() const {
  check_all_taken("check_same");
  attached_->check_same();
  if (local_) local_->check_same();
}

}  // namespace trireme::train
