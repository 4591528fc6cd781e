#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/order.h"

namespace trireme::data {

/// This rank's part of one batch.
struct Batch {
  int64_t number = 0;               ///< counted from 0 over all epochs
  std::vector<int64_t> sample_ids;  ///< of this rank's rows
  at::Tensor inputs, targets;       ///< [rows, ...]; 0 rows where the rank has no samples
  at::Tensor documents = {};        ///< Sample::documents of each row, or undefined
  /// Of the ranks that share the batch: rows of the one that has the most, of the one that has the
  /// fewest, and of all together.
  int64_t largest_block = 0, smallest_block = 0, all_rows = 0;
};

/// Prefetches batches on threads of its own. An exception of the dataset is thrown by the `next`
/// that would return that batch; of several in a batch, that of the first row.
///
/// The threads share the rows of the batches ahead, so that one batch is there as soon as all
/// threads together can read it. Batches come in their order, whoever reads what:
///
///     started    batch 7            batch 8            batch 9
///     rows       [x x x x x x x x]  [x x x 1 2 x 3 .]  [. . . .]      x read, . not yet
///                 ^ next() takes it        ^ ^   ^ threads 1 to 3
class Loader {
 public:
  /// Starts at batch `first`; for rank `rank` of `size`.
  Loader(std::shared_ptr<const Dataset> dataset, Order order, int rank, int size, int64_t first,
         int threads = 1);
  ~Loader();

  Batch next();

  /// Reads one batch on the calling thread, for evaluation.
  static Batch read(const Dataset& dataset, const Order& order, int rank, int size, int64_t number);

 private:
  struct Reading;  // a batch whose rows are being read
  void run(std::stop_token stop);
  /// The next row that nobody reads yet. With the lock.
  std::pair<Reading*, std::size_t> next_row();
  void read_row(Reading& batch, std::size_t row);

  static constexpr std::size_t kAhead = 3;
  std::shared_ptr<const Dataset> dataset_;
  Order order_;
  int rank_, size_;
  int64_t next_number_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::unique_ptr<Reading>> started_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace trireme::data
