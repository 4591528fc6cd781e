#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::nn {

/// A gradient of one parameter that is computed later.
struct WeightJob {
  at::Tensor parameter;
  std::function<at::Tensor()> gradient;
};

/// Splits a backward in two: the gradients of inputs now, those of weights later. While `defer`
/// runs, the layers that know the queue put what the gradients of their weights need into it, and
/// compute only the gradient of their input, which other ranks wait for. These layers are Linear
/// and Conv2d, whose products are most of a backward. (A weight with a hook is not deferred: the
/// hook must get its gradient from autograd.)
///
///   I   dx = dy W          queue: (x, dy)
///   W   dW = dy^T x  <──── queue
///
/// Not thread-safe.
class WeightQueue {
 public:
  /// Runs a backward and returns the jobs that it has deferred, in order.
  std::vector<WeightJob> defer(const std::function<void()>& backward);

  bool defers() const { return defers_; }
  void push(WeightJob job) { jobs_.push_back(std::move(job)); }

 private:
  bool defers_ = false;
  std::vector<WeightJob> jobs_;
};
using WeightQueuePtr = std::shared_ptr<WeightQueue>;

/// Computes a deferred gradient and delivers it as autograd would: adds it to .grad of the
/// parameter, and calls the parameter's hook.
void deliver(const WeightJob& job);

/// Sets the queue of all layers of a module that can defer.
void defer_weights(torch::nn::Module& module, const WeightQueuePtr& queue);

}  // namespace trireme::nn
