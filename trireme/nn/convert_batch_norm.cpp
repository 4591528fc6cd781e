// How torch's own batch norm modules take their statistics over several ranks.
//
// A model calls its modules by their C++ types, so that no other module can take their place. But
// all of them compute by one operator:
//
//   BatchNorm2d::forward ──> at::batch_norm(x, ..., running_mean, ...) ──> ours, or libtorch's
//
// We stand before the operator where gradients may be needed. A converted module's running mean (or
// its weight) carries BatchStatistics; all other calls go on to libtorch. A tensor that moves to
// another dtype loses what it carries, so the module also gets a child, which hangs it on again.
#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include "trireme/core/error.h"
#include "trireme/nn/batch_norm.h"
#include "trireme/nn/recompute.h"

namespace trireme::nn {

namespace {

/// What a converted module's tensor carries: also where its calls are counted.
struct ConvertedStatistics final : BatchStatistics {
  at::Tensor num_batches;
};

const at::Tensor& carrier_of(const at::Tensor& running_mean, const at::Tensor& weight) {
  return running_mean.defined() ? running_mean : weight;
}

c10::intrusive_ptr<ConvertedStatistics> statistics_on(const at::Tensor& carrier) {
  if (!carrier.defined()) return {};
  auto meta = carrier.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  auto* const found = dynamic_cast<ConvertedStatistics*>(meta.get());
  return found == nullptr ? c10::intrusive_ptr<ConvertedStatistics>()
                          : c10::intrusive_ptr<ConvertedStatistics>::reclaim_copy(found);
}

at::Tensor batch_norm_of_module(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                const std::optional<at::Tensor>& bias,
                                const std::optional<at::Tensor>& running_mean,
                                const std::optional<at::Tensor>& running_var, bool training,
                                double momentum, double epsilon, bool cudnn) {
  const auto or_none = [](const std::optional<at::Tensor>& one) {
    return one.value_or(at::Tensor());
  };
  const at::Tensor mean = or_none(running_mean);
  const auto statistics = statistics_on(carrier_of(mean, or_none(weight)));
  if (!training || !statistics)
    return at::native::batch_norm(x, weight, bias, running_mean, running_var, training, momentum,
                                  epsilon, cudnn);
  // The module has counted this call already; `track` counts mini-batches.
  if (statistics->num_batches.defined() && mean.defined() && !is_recomputing())
    statistics->num_batches.sub_(1);
  return batch_norm::normalize({.x = x, .weight = or_none(weight), .bias = or_none(bias)},
                               {.statistics = statistics,
                                .running = {mean, or_none(running_var), statistics->num_batches},
                                .momentum = momentum,
                                .epsilon = epsilon});
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("batch_norm", batch_norm_of_module);
}
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("batch_norm", batch_norm_of_module);
}

constexpr const char* kChild = "synchronized";

/// The child of a converted module.
class SynchronizedImpl final : public torch::nn::Module, public HasBatchStatistics {
 public:
  SynchronizedImpl(at::Tensor carrier, BatchStatisticsPtr statistics)
      : carrier_(std::move(carrier)), statistics_(std::move(statistics)) {}
  const BatchStatisticsPtr& statistics() const override { return statistics_; }
  void settle() const override { carrier_.unsafeGetTensorImpl()->set_backend_meta(statistics_); }

 private:
  at::Tensor carrier_;
  BatchStatisticsPtr statistics_;
};

/// What the three kinds of modules have in common.
struct TorchBatchNorm {
  at::Tensor weight, running_mean, num_batches;
};

std::optional<TorchBatchNorm> as_batch_norm(const torch::nn::Module& module) {
  const auto fields = [](const auto& one) {
    return TorchBatchNorm{one->weight, one->running_mean, one->num_batches_tracked};
  };
  if (const auto* one = module.as<torch::nn::BatchNorm1d>()) return fields(one);
  if (const auto* two = module.as<torch::nn::BatchNorm2d>()) return fields(two);
  if (const auto* three = module.as<torch::nn::BatchNorm3d>()) return fields(three);
  return {};
}

}  // namespace

void convert_sync_batch_norm(torch::nn::Module& model, const Mesh& mesh) {
  const comm::Communicator group = mesh.samples();
  std::optional<comm::Communicator> own;
  if (group.size() > 1) own = group.split("batch_norm", 0, group.rank());
  // A copy of the list: modules get children on the way. A constructor may call this, where torch
  // cannot list the model itself.
  std::vector<std::pair<std::string, torch::nn::Module*>> modules = {{"", &model}};
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    modules.emplace_back(item.key(), item.value().get());
  for (const auto& [name, module] : modules) {
    const auto norm = as_batch_norm(*module);
    if (!norm) continue;
    const at::Tensor& carrier = carrier_of(norm->running_mean, norm->weight);
    core::check(carrier.defined(),
                "convert_sync_batch_norm: '{}' has neither weights nor running statistics, so that "
                "its calls cannot be told from others; give it affine(true)",
                name);
    auto statistics = c10::make_intrusive<ConvertedStatistics>();
    statistics->num_batches = norm->num_batches;
    statistics->synchronize(own);
    const auto child = std::make_shared<SynchronizedImpl>(carrier, std::move(statistics));
    child->settle();
    if (module->named_children().contains(kChild))
      module->replace_module(kChild, child);
    else
      module->register_module(kChild, child);
  }
}

}  // namespace trireme::nn
