#pragma once

#include <memory>
#include <string>

#include "trireme/nn/experts.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/plan.h"
#include "trireme/nn/router.h"
#include "trireme/nn/swiglu.h"

namespace trireme::nn {

/// A mixture of experts in place of a feed-forward network: a Router, Experts, and a shared network
/// that every token sees. It takes and returns [rows, positions, width].
///
///   x ──> router ──> weights, choice ──┐
///   ├───────────────────────────────> experts ──> + ──> y
///   └──────────────────────────────> shared ──────┘
class MoeImpl : public LayerImpl {
 public:
  struct Options {
    RouterImpl::Options router = {};
    ExpertsImpl::Options experts = {};
    int64_t shared = 0;  ///< experts that every token sees: one network of so many times the ffn
  };
  /// The width and the number of experts are the router's.
  explicit MoeImpl(Options options);

  Router router{nullptr};
  Experts experts{nullptr};

 protected:
  Flow compute(const Flow& in) override;

 private:
  at::Tensor shared_result(const Flow& in);

  Linear shared_up_{nullptr}, shared_down_{nullptr};
  SwiGlu shared_gate_{nullptr};
};
TORCH_MODULE(Moe);

/// The plan of a layer of these options whose name matches `pattern`, to be added to a model's.
Plan moe_plan(const std::string& pattern, const MoeImpl::Options& options);

}  // namespace trireme::nn
