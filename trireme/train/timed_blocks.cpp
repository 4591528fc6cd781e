#include "trireme/train/timed_blocks.h"

#include <ATen/ops/full.h>

namespace trireme::train {

TimedBlocks::TimedBlocks(std::shared_ptr<const data::Dataset> dataset, data::Order order,
                         const parallel::ReplicaMeshes& meshes,
                         std::chrono::duration<double> length, Range numbers)
    : dataset_(std::move(dataset)), order_(order), replica_(meshes.replica), length_(length) {
  if (replica_.world().rank() == 0)
    claims_ = std::make_unique<Claims>(meshes.meeting.world(), numbers.begin,
                                       numbers.begin + numbers.count);
}

std::optional<data::Batch> TimedBlocks::next() {
  constexpr int64_t kOver = -1;
  at::Tensor number = at::full({1}, kOver, at::kLong);
  const bool goes_on =
      std::exchange(first_, false) || std::chrono::steady_clock::now() - began_ < length_;
  if (claims_ && goes_on) number.fill_(claims_->next().value_or(kOver));
  replica_.world().broadcast(number, 0).wait();
  const auto claimed = number.item<int64_t>();
  if (claimed == kOver) return std::nullopt;
  const comm::Communicator& ranks = replica_.samples();
  return data::Loader::read(*dataset_, order_, ranks.rank(), ranks.size(), claimed);
}

int64_t TimedBlocks::used(const comm::Communicator& world) const {
  at::Tensor reached = at::full({1}, world.rank() == 0 ? claims_->reached() : 0, at::kLong);
  world.broadcast(reached, 0).wait();
  return reached.item<int64_t>();
}

}  // namespace trireme::train
