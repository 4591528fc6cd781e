#include "trireme/data/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "trireme/core/error.h"

namespace trireme::data {

namespace {

/// A tensor with 0 rows of the shape of `like`.
at::Tensor no_rows(const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.insert(shape.begin(), 0);
  return at::empty(shape, like.options());
}

}  // namespace

Batch Loader::read(const Dataset& dataset, const Order& order, int rank, int size, int64_t number) {
  Batch batch;
  batch.number = number;
  batch.sample_ids = order.block(number, rank, size);
  batch.largest_block = order.largest_block(number, size);
  batch.smallest_block = order.smallest_block(number, size);
  batch.all_rows = order.largest_block(number, 1);
  std::vector<at::Tensor> inputs, targets;
  for (int64_t id : batch.sample_ids) {
    Sample sample = dataset.get(id);
    core::check(sample.input.defined() && sample.target.defined(),
                "the dataset's get({}) returned no input or no target", id);
    inputs.push_back(std::move(sample.input));
    targets.push_back(std::move(sample.target));
  }
  if (inputs.empty()) {
    const Sample one = dataset.get(0);
    batch.inputs = no_rows(one.input);
    batch.targets = no_rows(one.target);
  } else {
    batch.inputs = at::stack(inputs);
    batch.targets = at::stack(targets);
  }
  return batch;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, Order order, int rank, int size,
               int64_t first)
    : dataset_(std::move(dataset)),
      order_(order),
      rank_(rank),
      size_(size),
      next_number_(first),
      reader_([this](std::stop_token stop) { run(stop); }) {}

Loader::~Loader() {
  reader_.request_stop();
  changed_.notify_all();
}

void Loader::run(std::stop_token stop) {
  for (int64_t number = next_number_; !stop.stop_requested(); ++number) {
    Batch batch;
    try {
      batch = read(*dataset_, order_, rank_, size_, number);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failed_ = std::current_exception();
      changed_.notify_all();
      return;
    }
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return ready_.size() < kAhead; })) return;
    ready_.push_back(std::move(batch));
    changed_.notify_all();
  }
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || failed_; });
  if (ready_.empty()) std::rethrow_exception(failed_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

}  // namespace trireme::data
