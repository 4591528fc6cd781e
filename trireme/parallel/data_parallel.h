#pragma once

#include "trireme/parallel/gradients.h"

namespace trireme::parallel {

/// Who says what is in the module's buffers (running means and the like).
enum class BufferPolicy : uint8_t { Leave, BroadcastEachStep };

struct DataParallelOptions {
  BucketSizes buckets = {};
  BufferPolicy buffers = BufferPolicy::Leave;
};

/// Keeps replicas of a module equal: attaches to its parameters, and leaves the module as it is.
///
///   parallel::DataParallel replicas(*model, world);
///   ...
///   replicas.backward(loss);
///   replicas.finish();
///   optimizer.step();          // any torch::optim
///
/// The gradient is that of one process on the whole batch, however it falls to the ranks.
class DataParallel {
 public:
  /// Checks that all ranks hold the same names, shapes and dtypes, then copies the first rank's
  /// parameters and buffers to all. Collective.
  DataParallel(torch::nn::Module& module, const comm::Communicator& replicas,
               DataParallelOptions options = {});

  void backward(const nn::Loss& loss, Micro micro = Micro::Last) {
    gradients_.backward(loss, micro);
  }
  /// Collective. See Gradients::finish.
  Totals finish(std::span<const double> values = {}, Divide divide = Divide::Now);

  /// Throws if a replica's parameters differ. Collective.
  void check_same() const;

  Gradients& gradients() { return gradients_; }

 private:
  torch::nn::Module& module_;
  comm::Communicator replicas_;
  DataParallelOptions options_;
  Gradients gradients_;
};

}  // namespace trireme::parallel
