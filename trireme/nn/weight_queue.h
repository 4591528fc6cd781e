#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::nn {

/// The gradient of one parameter, to be computed later.
struct WeightJob {
  at::Tensor parameter;
  std::function<at::Tensor()> gradient;
};

/// Splits a backward in two: input gradients now, weights' later. While `defer` runs, the layers
/// that know the queue (Linear: two thirds of a backward are its matrices) put what they need for
/// their weights into it, and go on with what others wait for. (Not for a weight that has a hook
/// of its own: that one wants its gradient from autograd.)
///
///   I   dx = dy W          queue: (x, dy)
///   W   dW = dy^T x  <──── queue
///
/// One thread uses it.
class WeightQueue {
 public:
  /// Runs a backward, and returns what it has left to be done, in the order in which it came.
  std::vector<WeightJob> defer(const std::function<void()>& backward);

  bool defers() const { return defers_; }
  void push(WeightJob job) { jobs_.push_back(std::move(job)); }

 private:
  bool defers_ = false;
  std::vector<WeightJob> jobs_;
};
using WeightQueuePtr = std::shared_ptr<WeightQueue>;

/// Computes a deferred gradient and gives it to the parameter, as autograd would: added to .grad,
/// its hook called.
void deliver(const WeightJob& job);

/// Tells the layers of a module that can defer which queue is theirs.
void defer_weights(torch::nn::Module& module, const WeightQueuePtr& queue);

}  // namespace trireme::nn
