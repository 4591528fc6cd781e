#include "trireme/nn/moe.h"

namespace trireme::nn {

namespace {

ExpertsImpl::Options completed_experts(const MoeImpl::Options& options) {
  ExpertsImpl::Options experts = options.experts;
  experts.width = options.router.width;
  experts.experts = options.router.experts;
  return experts;
}

}  // namespace

MoeImpl::MoeImpl(Options options) {
  const ExpertsImpl::Options each = completed_experts(options);
  router = register_module("router", Router(options.router));
  experts = register_module("experts", Experts(each));
  if (options.shared == 0) return;
  using Into = LinearImpl::Options;
  const int64_t ffn = options.shared * each.ffn;
  auto shared = std::make_shared<torch::nn::Module>("shared");
  Into up{.bias = false, .deviation = each.in_deviation, .gelu = !each.gated};
  if (each.gated) up.out_sections = {{.size = ffn}, {.size = ffn}};
  shared_up_ =
      shared->register_module("up", Linear(each.width, each.gated ? 2 * ffn : ffn, std::move(up)));
  if (each.gated) shared_gate_ = shared->register_module("gate", SwiGlu(ffn));
  shared_down_ = shared->register_module(
      "down", Linear(ffn, each.width, Into{.bias = false, .deviation = each.out_deviation}));
  register_module("shared", shared);
}

Flow MoeImpl::compute(const Flow& in) {
  const Flow routing = router->forward(in.first());
  const Flow y = experts->forward({{in.x(), routing.tensors[0], routing.tensors[1]}, in.where});
  return shared_up_ ? y.with(y.x() + shared_result(in.first())) : y;
}

at::Tensor MoeImpl::shared_result(const Flow& in) {
  const Flow wide = shared_up_->forward(in);
  return shared_down_->forward(shared_gate_ ? shared_gate_->forward(wide) : gelu_from(wide)).x();
}

Plan moe_plan(const std::string& pattern, const MoeImpl::Options& options) {
  Plan plan = {{pattern, Style::Positions},
               {pattern + ".router", Style::Positions},
               {pattern + ".experts", Style::Expert}};
  if (options.shared == 0) return plan;
  plan.emplace_back(pattern + ".shared.up", Style::Column);
  if (options.experts.gated) plan.emplace_back(pattern + ".shared.gate", Style::Column);
  plan.emplace_back(pattern + ".shared.down", Style::Row);
  return plan;
}

}  // namespace trireme::nn
