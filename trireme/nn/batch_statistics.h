#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>

#include <optional>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/mesh/mesh.h"

namespace trireme::nn {

/// Over which samples a batch norm takes its statistics, and when it updates the running ones.
///
///   mini-batch         all that ranks compute between two updates of the weights
///     micro-batch      one call on every rank: it is normalized by its own mean and variance, over
///                      all ranks of the group
///   running statistics of the whole mini-batch, as if it had been one call: they are merged call
///   by
///                      call, and count once
///
class BatchStatistics : public c10::BackendMeta {
 public:
  /// The buffers of a module; `mean` is undefined if it tracks nothing.
  struct Running {
    at::Tensor mean, var, num_batches;
  };

  /// Statistics over this group, whose ranks must make the same calls; none: this rank's own.
  void synchronize(std::optional<comm::Communicator> group) { group_ = std::move(group); }
  /// nullptr: one rank.
  const comm::Communicator* group() const { return group_ ? &*group_ : nullptr; }

  /// From now on a mini-batch lasts until `end_mini_batch`. Before, each call is one; such calls,
  /// as those that time the layers of a pipeline, are no part of the first.
  void defer() {
    defers_ = true;
    open_ = false;
  }
  void end_mini_batch() { open_ = false; }
  /// Ends it as if it had not begun.
  void discard_mini_batch();

  /// The moments of all ranks of the group (batch_norm::moments_of). Collective.
  at::Tensor gather(const at::Tensor& own) const;

  /// Counts a call with these moments: updates the running statistics, and `num_batches` if the
  /// call begins a mini-batch. While a call is recomputed, it does nothing.
  void track(const at::Tensor& moments, const Running& running, double momentum);

 private:
  bool begins() const { return !defers_ || !open_; }

  std::optional<comm::Communicator> group_;
  bool defers_ = false, open_ = false;
  double momentum_ = 0;
  at::Tensor moments_, mean_, var_;  // of the mini-batch so far; the running ones before it
  Running running_;                  // what it changes
};
using BatchStatisticsPtr = c10::intrusive_ptr<BatchStatistics>;

/// A module that has such statistics.
class HasBatchStatistics {
 public:
  virtual ~HasBatchStatistics() = default;
  virtual const BatchStatisticsPtr& statistics() const = 0;
  /// Is what attaches to the model to say which ranks there are?
  virtual bool wants_all_ranks() const { return false; }
  /// Called when the module has its dtype and its device.
  virtual void settle() const {}
};

/// Those of all batch norms below a module: of nn::BatchNorm, and of torch's that were converted.
std::vector<BatchStatisticsPtr> batch_statistics_of(const torch::nn::Module& root);

/// Prepares the batch norms of a module that is trained on this mesh: statistics of all ranks that
/// share the samples where the layer wants them, and running statistics of whole mini-batches.
/// Collective.
void attach_batch_norms(const torch::nn::Module& root, const Mesh& mesh);

/// Makes every batch norm of a torch model (BatchNorm1d, 2d and 3d, anywhere in the tree) take its
/// statistics over all ranks that share the samples. Exact for ranks with any numbers of rows, also
/// none. The modules stay the same objects, with their parameters and buffers; each gets a child
/// without any, "synchronized". Call it before the model is attached. Collective.
///
///   nn::convert_sync_batch_norm(*model, mesh);
///   parallel::DataParallel replicas(*model, mesh);
///
/// Throws MisuseError for a module that has neither weights nor running statistics: nothing of it
/// can be recognized when it computes. (torch's modules themselves refuse a rank that has exactly
/// one value of each channel; nn::BatchNorm does not.)
void convert_sync_batch_norm(torch::nn::Module& model, const Mesh& mesh);

}  // namespace trireme::nn
