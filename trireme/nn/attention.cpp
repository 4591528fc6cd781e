#include "trireme/nn/attention.h"

#include <ATen/Context.h>
#include <torch/autograd.h>

#include "trireme/comm/dtype.h"
#include "trireme/cuda/kernel.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

bool suits_cudnn(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  constexpr int64_t kFewest = 64, kLargestHead = 128;
  const int64_t head = qkv.size(2) / (heads + 2 * kv_heads);
  constexpr int kAmpere = 80;
  return qkv.is_cuda() && comm::is_half(qkv.scalar_type()) && heads == kv_heads && head % 8 == 0 &&
         cuda::architecture(qkv.device()) >= kAmpere && head <= kLargestHead &&
         qkv.size(1) >= kFewest && !at::globalContext().deterministicAlgorithms() &&
         at::globalContext().userEnabledCuDNNSDP() && at::detail::getCUDAHooks().hasCuDNN();
}

/// cuDNN's attention. The three gradients are written side by side, as the projection needs them.
struct CudnnAttention : ag::Function<CudnnAttention> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& qkv, int64_t heads,
                            bool is_causal) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [q, k, v] = parts_of(qkv, heads, heads);
    const auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
        at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt,
                                                /*compute_log_sumexp=*/true, 0.0,
                                                is_causal);
    context->saved_data["heads"] = heads;
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["max_q"] = max_q.expect_int();
    context->saved_data["max_k"] = max_k.expect_int();
    context->save_for_backward({qkv, out, lse, seed, offset, cum_q, cum_k});
    return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), -1});
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "attention: a gradient of a gradient (create_graph) is not there in 16 bits on a "
                "GPU; use precision.compute = \"float32\"");
    const auto saved = context->get_saved_variables();
    const int64_t heads = context->saved_data["heads"].toInt();
    const at::Tensor& qkv = saved[0];
    const int64_t B = qkv.size(0), T = qkv.size(1);
    const auto [q, k, v] = parts_of(qkv, heads, heads);
    const at::Tensor dy = gradients[0].reshape({B, T, heads, -1}).transpose(1, 2);
    const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        dy, q, k, v, saved[1], saved[2], saved[3], saved[4], {}, saved[5], saved[6],
        context->saved_data["max_q"].toInt(), context->saved_data["max_k"].toInt(), 0.0,
        context->saved_data["is_causal"].toBool());
    const auto flat = [&](const at::Tensor& one) {
      return one.transpose(1, 2).reshape({B, T, -1});
    };
    return {at::cat({flat(dq), flat(dk), flat(dv)}, 2), {}, {}};
  }
};

}  // namespace

QueryKeyValue parts_of(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t B = qkv.size(0), T = qkv.size(1), D = qkv.size(2) / (heads + 2 * kv_heads);
  // One split instead of three slices, because its backward is a single copy.
  const auto parts = qkv.split_with_sizes({heads * D, kv_heads * D, kv_heads * D}, 2);
  const auto heads_of = [&](const at::Tensor& part) {
    return part.view({B, T, part.size(2) / D, D}).transpose(1, 2);
  };
  return {heads_of(parts[0]), heads_of(parts[1]), heads_of(parts[2])};
}

at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, Sees sees) {
  const bool is_causal = sees == Sees::Past;
  if (suits_cudnn(qkv, heads, kv_heads)) return CudnnAttention::apply(qkv, heads, is_causal);
  const auto [q, k, v] = parts_of(qkv, heads, kv_heads);
  const at::Tensor y = at::scaled_dot_product_attention(
      q, k, v, {}, 0.0, is_causal, std::nullopt, /*enable_gqa=*/heads != kv_heads);
  return y.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), -1});
}

}  // namespace trireme::nn
