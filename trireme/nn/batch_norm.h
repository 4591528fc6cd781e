#pragma once

#include "trireme/nn/batch_statistics.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

namespace batch_norm {

/// One call of a batch norm in training.
struct Call {
  at::Tensor x, weight = {}, bias = {};  ///< [rows, channels, ...]; of the channels, or undefined
  at::Tensor residual = {};              ///< added to the result; may be undefined
  bool relu = false;                     ///< then what is negative becomes 0
};
/// What the call belongs to.
struct Of {
  BatchStatisticsPtr statistics;
  BatchStatistics::Running running;
  double momentum = 0.1, epsilon = 1e-5;
};

/// Normalizes by the mean and variance of all ranks' elements of each channel. Differentiable once.
/// Forward is one all_gather of 1 + 2 channels numbers, backward one all_reduce of 2 channels.
/// Collective.
at::Tensor normalize(const Call& call, const Of& of);

}  // namespace batch_norm

/// Normalizes each channel of [rows, channels, ...] by its mean and variance: in training those of
/// the micro-batch, over all ranks that share the samples; in evaluation the running ones (Ioffe
/// and Szegedy 2015). Two more steps can be done in the same pass over memory:
///
///   {x}       relu?(norm(x))
///   {x, r}    relu?(norm(x) + r)
///
/// Parameters and buffers have the names of torch's modules. What attaches to the model says which
/// ranks there are (`attach_batch_norms`).
class BatchNormImpl : public LayerImpl, public HasBatchStatistics {
 public:
  struct Options {
    double epsilon = 1e-5, momentum = 0.1;
    bool relu = false;
    bool all_ranks = true;  ///< false: each rank normalizes by its own samples
    double scale = 1;       ///< the first weights
  };
  explicit BatchNormImpl(int64_t channels) : BatchNormImpl(channels, Options{}) {}
  BatchNormImpl(int64_t channels, Options options);
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

  const BatchStatisticsPtr& statistics() const override { return statistics_; }
  bool wants_all_ranks() const override { return options_.all_ranks; }

 protected:
  Flow compute(const Flow& in) override;

 private:
  at::Tensor by_running(const at::Tensor& x) const;

  Options options_;
  BatchStatisticsPtr statistics_ = c10::make_intrusive<BatchStatistics>();
};
TORCH_MODULE(BatchNorm);

}  // namespace trireme::nn
