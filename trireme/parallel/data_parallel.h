#pragma once

#include "trireme/parallel/attached_module.h"
#include "trireme/parallel/compress_options.h"

namespace trireme::parallel {

struct DataParallelOptions {
  BucketSizes buckets = {};
  Precision precision = {};       ///< by default the module's own
  CompressOptions compress = {};  ///< how gradients are compressed on the wire
  /// How gradients are summed, whatever `compress` says; null: by `make_reducer`.
  std::shared_ptr<Reducer> reducer = nullptr;
};

/// Keeps replicas of a module equal: attaches to its parameters and does not change the module. On
/// a mesh with a tensor axis, the ranks of that axis hold one replica together.
///
///   parallel::DataParallel replicas(*model, mesh);
///   ...
///   replicas.backward(loss);
///   replicas.finish();
///   optimizer.step();          // any torch::optim
///
/// The gradient is that of one process on the whole batch, however the batch is dealt to the ranks.
///
/// With a precision of 16 bits the module's parameters become 16-bit weights. What they were, the
/// master, is kept: give the optimizer the masters of shards(), and call updated() after its step.
class DataParallel final : public AttachedModule {
 public:
  /// Checks that all ranks hold the same names, shapes and dtypes, then copies the first rank's
  /// parameters and buffers to all ranks that hold the same. Collective.
  DataParallel(torch::nn::Module& module, const Mesh& mesh, DataParallelOptions options = {});
  /// All ranks of one group are replicas.
  DataParallel(torch::nn::Module& module, const comm::Communicator& replicas,
               DataParallelOptions options = {})
      : DataParallel(module, Mesh(replicas, {.replica = replicas.size()}), options) {}

  std::vector<ParameterShard> shared() const override;
  Gradients& gradients() override { return *gradients_; }
  const Gradients& gradients() const override { return *gradients_; }
  std::vector<ParameterShard> frozen() const override;
  at::Tensor value(std::size_t parameter) override;
  at::Tensor gradient(std::size_t parameter) override;
  std::vector<ParameterValue> frozen_values() override;

 protected:
  void pass_on(Weights weights) override;

 private:
  std::vector<nn::Parameter> frozen_parameters() const;
  std::vector<ParameterShard> whole_shards(const std::vector<nn::Parameter>& parameters) const;
  at::Tensor master_of(const at::Tensor& weight) const;
  void make_masters();

  std::vector<at::Tensor> weights_, masters_;  // where they are not the same tensor
  std::unique_ptr<Gradients> gradients_;
};

}  // namespace trireme::parallel
