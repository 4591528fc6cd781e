#include "trireme/data/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <cstdint>

#include "trireme/core/error.h"

namespace trireme::data {

namespace {

/// A tensor with 0 rows of the shape of `like`.
at::Tensor no_rows(const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.insert(shape.begin(), 0);
  return at::empty(shape, like.options());
}

/// A batch without its tensors.
Batch plan_batch(const Order& order, int rank, int size, int64_t number) {
  Batch batch;
  batch.number = number;
  batch.sample_ids = order.block(number, rank, size);
  batch.largest_block = order.largest_block(number, size);
  batch.smallest_block = order.smallest_block(number, size);
  batch.all_rows = order.largest_block(number, 1);
  return batch;
}

/// A batch without rows reads one sample all the same, for its shape.
std::size_t rows_to_read(const Batch& batch) {
  return std::max<std::size_t>(1, batch.sample_ids.size());
}

Sample read_sample(const Dataset& dataset, const Order& order, const Batch& batch,
                   std::size_t row) {
  const int64_t id = batch.sample_ids.empty() ? 0 : batch.sample_ids[row];
  Sample sample = dataset.get_in_epoch(id, order.epoch_of(batch.number));
  core::check(sample.input.defined() && sample.target.defined(),
              "the dataset's get({}) returned no input or no target", id);
  return sample;
}

void put_together(const std::vector<Sample>& samples, Batch& batch) {
  if (batch.sample_ids.empty()) {
    batch.inputs = no_rows(samples.front().input);
    batch.targets = no_rows(samples.front().target);
    if (samples.front().documents.defined()) batch.documents = no_rows(samples.front().documents);
    return;
  }
  std::vector<at::Tensor> inputs, targets, documents;
  for (const Sample& sample : samples) {
    inputs.push_back(sample.input);
    targets.push_back(sample.target);
    if (sample.documents.defined()) documents.push_back(sample.documents);
  }
  batch.inputs = at::stack(inputs);
  batch.targets = at::stack(targets);
  core::check(documents.empty() || documents.size() == samples.size(),
              "{} of {} samples of a batch say where documents begin; all must, or none",
              documents.size(), samples.size());
  if (!documents.empty()) batch.documents = at::stack(documents);
}

}  // namespace

Batch Loader::read(const Dataset& dataset, const Order& order, int rank, int size, int64_t number) {
  Batch batch = plan_batch(order, rank, size, number);
  std::vector<Sample> samples;
  for (std::size_t row = 0; row < rows_to_read(batch); ++row)
    samples.push_back(read_sample(dataset, order, batch, row));
  put_together(samples, batch);
  return batch;
}

struct Loader::Reading {
  explicit Reading(Batch planned)
      : batch(std::move(planned)), samples(rows_to_read(batch)), missing(samples.size()) {}

  Batch batch;
  std::vector<Sample> samples;
  std::size_t given = 0;  ///< rows that a thread has taken
  std::size_t missing;    ///< rows that are not read yet; then the batch is put together
  bool is_whole = false;
  std::exception_ptr failure;  ///< of the first row that failed
  std::size_t failed_row = SIZE_MAX;

  void fail(std::size_t row) {
    if (row >= failed_row) return;
    failed_row = row;
    failure = std::current_exception();
  }
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, Order order, int rank, int size,
               int64_t first, int threads)
    : dataset_(std::move(dataset)), order_(order), rank_(rank), size_(size), next_number_(first) {
  core::check(threads >= 1, "a loader needs at least one thread, not {}", threads);
  for (int i = 0; i < threads; ++i)
    threads_.emplace_back([this](std::stop_token stop) { run(stop); });
}

Loader::~Loader() {
  for (std::jthread& each : threads_) each.request_stop();
  changed_.notify_all();
}

std::pair<Loader::Reading*, std::size_t> Loader::next_row() {
  for (const auto& each : started_)
    if (each->given < each->samples.size()) return {each.get(), each->given++};
  if (started_.size() >= kAhead) return {};
  started_.push_back(std::make_unique<Reading>(plan_batch(order_, rank_, size_, next_number_++)));
  return {started_.back().get(), started_.back()->given++};
}

void Loader::run(std::stop_token stop) {
  // Each thread works alone: torch would start a pool of threads for each of ours.
  const c10::ParallelGuard serial(true);
  for (;;) {
    std::pair<Reading*, std::size_t> row;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [&] { return (row = next_row()).first != nullptr; });
      if (stop.stop_requested()) return;
    }
    read_row(*row.first, row.second);
  }
}

/// Whoever reads the last row of a batch puts it together. Nobody else touches it then.
void Loader::read_row(Reading& reading, std::size_t row) {
  Sample sample;
  try {
    sample = read_sample(*dataset_, order_, reading.batch, row);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    reading.fail(row);
  }
  {
    const std::lock_guard lock(mutex_);
    reading.samples[row] = std::move(sample);
    if (--reading.missing > 0) return;
  }
  try {
    if (!reading.failure) put_together(reading.samples, reading.batch);
  } catch (...) {
    reading.fail(0);
  }
  const std::lock_guard lock(mutex_);
  reading.samples.clear();
  reading.is_whole = true;
  changed_.notify_all();
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !started_.empty() && started_.front()->is_whole; });
  if (started_.front()->failure) std::rethrow_exception(started_.front()->failure);
  Batch batch = std::move(started_.front()->batch);
  started_.pop_front();
  changed_.notify_all();
  return batch;
}

}  // namespace trireme::data
