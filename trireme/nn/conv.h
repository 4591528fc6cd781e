#pragma once

#include <c10/core/MemoryFormat.h>

#include "trireme/nn/layer.h"
#include "trireme/nn/weight_queue.h"

namespace trireme::nn {

/// Convolution of images [rows, channels, height, width].
class Conv2dImpl : public LayerImpl {
 public:
  struct Options {
    int64_t in = 1, out = 1;  ///< channels
    int64_t kernel = 3, stride = 1, padding = 0;
    bool bias = true;
    double deviation = 0;  ///< of the initial weights; 0: torch's rule, uniform in +-1/sqrt(inputs)
    /// How the images lie in memory: [rows, channels, height, width], or with the channels of a
    /// pixel side by side. Images that lie otherwise are copied.
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };
  explicit Conv2dImpl(Options options);

  at::Tensor weight, bias;  ///< [out, in, kernel, kernel]; bias may be undefined

  /// Sets the queue for weight gradients, which is used while a backward is split.
  void set_queue(WeightQueuePtr queue) { queue_ = std::move(queue); }

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;

 private:
  Options options_;
  WeightQueuePtr queue_;
};
TORCH_MODULE(Conv2d);

/// The largest of each window, and the mean of each image's channel, [rows, channels]: layers
/// without parameters.
class MaxPool2dImpl : public LayerImpl {
 public:
  MaxPool2dImpl(int64_t kernel, int64_t stride, int64_t padding)
      : kernel_(kernel), stride_(stride), padding_(padding) {}

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;

 private:
  int64_t kernel_, stride_, padding_;
};
TORCH_MODULE(MaxPool2d);

class GlobalAveragePoolImpl : public LayerImpl {
 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;
};
TORCH_MODULE(GlobalAveragePool);

}  // namespace trireme::nn
