#include "trireme/nn/attention.h"

#include <ATen/Context.h>
#include <torch/autograd.h>

#include <cmath>
#include <limits>

#include "trireme/comm/dtype.h"
#include "trireme/cuda/kernel.h"
#include "trireme/nn/rotary.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

bool suits_cudnn(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  constexpr int64_t kFewest = 64, kLargestHead = 128;
  const int64_t head = qkv.size(2) / (heads + 2 * kv_heads);
  constexpr int kAmpere = 80;
  return qkv.is_cuda() && comm::is_half(qkv.scalar_type()) && head % 8 == 0 &&
         cuda::architecture(qkv.device()) >= kAmpere && head <= kLargestHead &&
         qkv.size(1) >= kFewest && !at::globalContext().deterministicAlgorithms() &&
         at::globalContext().userEnabledCuDNNSDP() && at::detail::getCUDAHooks().hasCuDNN();
}

/// What the backward of cuDNN's attention needs, besides tensors.
struct CudnnContext : torch::CustomClassHolder {
  int64_t heads = 0, kv_heads = 0;
  bool is_causal = true;
  c10::SymInt max_q, max_k;
  std::optional<cuda::RotaryHeads> rotary;
};

/// cuDNN's attention. The three gradients are written side by side, as the projection needs them;
/// those of q and k are turned back on the way.
struct CudnnAttention : ag::Function<CudnnAttention> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& qkv,
                            c10::intrusive_ptr<CudnnContext> layer) {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (layer->rotary) cuda::rotate(qkv, *layer->rotary);
    const auto [q, k, v] = parts_of(qkv, layer->heads, layer->kv_heads);
    const auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
        at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt,
                                                /*compute_log_sumexp=*/true, 0.0, layer->is_causal);
    layer->max_q = max_q;
    layer->max_k = max_k;
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    context->save_for_backward({qkv, out, lse, seed, offset, cum_q, cum_k});
    return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), -1});
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "attention: a gradient of a gradient (create_graph) is not there in 16 bits on a "
                "GPU; use precision.compute = \"float32\"");
    const auto saved = context->get_saved_variables();
    const auto layer =
        c10::static_intrusive_pointer_cast<CudnnContext>(context->saved_data["layer"].toCapsule());
    const at::Tensor& qkv = saved[0];
    const int64_t B = qkv.size(0), T = qkv.size(1);
    const auto [q, k, v] = parts_of(qkv, layer->heads, layer->kv_heads);
    const at::Tensor dy = gradients[0].reshape({B, T, layer->heads, -1}).transpose(1, 2);
    const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        dy, q, k, v, saved[1], saved[2], saved[3], saved[4], {}, saved[5], saved[6],
        layer->max_q.expect_int(), layer->max_k.expect_int(), 0.0, layer->is_causal);
    if (layer->rotary) return {cuda::unrotated_gradient(dq, dk, dv, *layer->rotary), {}};
    const auto flat = [&](const at::Tensor& one) {
      return one.transpose(1, 2).reshape({B, T, -1});
    };
    return {at::cat({flat(dq), flat(dk), flat(dv)}, 2), {}};
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

at::Tensor visible(const Positions& queries, const Positions& keys, const at::Tensor& documents,
                   c10::Device device) {
  const auto as_tensor = [&](const Positions& positions) {
    return at::tensor(positions.each(), at::kLong).to(device);
  };
  const at::Tensor q = as_tensor(queries).unsqueeze(1), k = as_tensor(keys);
  const at::Tensor past = (k <= q).unsqueeze(0).unsqueeze(0);
  if (!documents.defined()) return past;
  return at::logical_and(past, k >= documents.to(device).unsqueeze(1).unsqueeze(3));
}

at::Tensor plain_attention(const QueryKeyValue& parts, const at::Tensor& seen,
                           const at::Tensor& keep) {
  const auto& [q, k, v] = parts;
  const int64_t repeat = q.size(1) / k.size(1);
  const auto keys = repeat != 1 ? k.repeat_interleave(repeat, 1) : k;
  const auto values = repeat != 1 ? v.repeat_interleave(repeat, 1) : v;
  // Divided before the product, which could overflow in float16.
  auto scores = at::matmul(q / std::sqrt(double(q.size(3))), keys.transpose(-2, -1));
  if (seen.defined())
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  const auto wide = at::promote_types(q.scalar_type(), at::kFloat);
  const auto chances = at::softmax(scores, -1, wide).to(q.scalar_type());
  return at::matmul(keep.defined() ? chances * keep : chances, values);
}

at::Tensor masked_attention(const QueryKeyValue& parts, const at::Tensor& seen) {
  const auto& [q, k, v] = parts;
  return at::scaled_dot_product_attention(q, k, v, seen, 0.0, /*is_causal=*/false, std::nullopt,
                                          /*enable_gqa=*/q.size(1) != k.size(1));
}

at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                            const cuda::RotaryHeads* rotary, Sees sees) {
  const bool is_causal = sees == Sees::Past;
  if (suits_cudnn(qkv, heads, kv_heads)) {
    auto layer = c10::make_intrusive<CudnnContext>();
    layer->heads = heads;
    layer->kv_heads = kv_heads;
    layer->is_causal = is_causal;
    if (rotary != nullptr) layer->rotary = *rotary;
    return CudnnAttention::apply(qkv.contiguous(), std::move(layer));
  }
  const at::Tensor placed = rotary != nullptr ? turned(qkv, *rotary) : qkv;
  const auto [q, k, v] = parts_of(placed, heads, kv_heads);
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, is_causal, std::nullopt,
                                                        /*enable_gqa=*/heads != kv_heads);
  return y.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), -1});
}

}  // namespace trireme::nn
