#include "trireme/nn/weight_queue.h"

#include <torch/csrc/autograd/variable.h>

#include "trireme/nn/conv.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {

std::vector<WeightJob> WeightQueue::defer(const std::function<void()>& backward) {
  struct StopDeferring {
    WeightQueue& queue;
    ~StopDeferring() {
      queue.defers_ = false;
      queue.jobs_.clear();
    }
  } const ends{*this};
  defers_ = true;
  backward();
  return std::exchange(jobs_, {});
}

void deliver(const WeightJob& job) {
  const at::NoGradGuard guard;
  at::Tensor more = job.gradient();
  at::Tensor& gradient = job.parameter.mutable_grad();
  gradient = gradient.defined() ? gradient.add_(more) : std::move(more);
  if (const auto& hook = torch::autograd::impl::post_acc_grad_hooks(job.parameter))
    (*hook)(job.parameter);
}

void defer_weights(torch::nn::Module& module, const WeightQueuePtr& queue) {
  module.apply([&](torch::nn::Module& one) {
    if (auto* linear = dynamic_cast<LinearImpl*>(&one)) linear->set_queue(queue);
    if (auto* conv = dynamic_cast<Conv2dImpl*>(&one)) conv->set_queue(queue);
  });
}

}  // namespace trireme::nn
