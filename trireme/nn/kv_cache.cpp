#include "trireme/nn/kv_cache.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/nn/layers.h"

namespace trireme::nn {

namespace {

/// The positions that each of T queries from `begin` on may see, of `end`: [T, end].
at::Tensor visible(int64_t begin, int64_t end, c10::Device device) {
  return at::ones({end - begin, end}, at::TensorOptions().dtype(at::kBool).device(device))
      .tril(begin);
}

/// Attention of a single query, which sees everything, [B, H, 1, D]: three small products. The
/// queries of one head of keys are rows of one product, so that no key is read twice.
at::Tensor attend_to_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t B = q.size(0), K = k.size(1), D = q.size(3), together = q.size(1) / K;
  const at::Tensor rows =
      (q * (1 / std::sqrt(static_cast<double>(D)))).reshape({B, K, together, D});
  const at::Tensor chances = at::softmax(at::matmul(rows, k.transpose(-2, -1)), -1);
  return at::matmul(chances, v).view({B, K * together, 1, D});
}

}  // namespace

/// Room for `end` positions; what is there stays. Doubled, so that a position is copied twice at
/// most.
void KvCache::reserve(const QueryKeyValue& now, int64_t end) {
  constexpr int64_t kFewest = 64;
  const bool fits = k_.defined() && k_.size(0) == now.k.size(0);
  const int64_t capacity = fits ? k_.size(2) : 0;
  if (end <= capacity) return;
  const auto wider = [&, wanted = std::max({end, 2 * capacity, kFewest})](const at::Tensor& old,
                                                                          const at::Tensor& like) {
    at::Tensor fresh =
        at::empty({like.size(0), like.size(1), wanted, like.size(3)}, like.options());
    if (end_ > 0) fresh.narrow(2, 0, end_).copy_(old.narrow(2, 0, end_));
    return fresh;
  };
  k_ = wider(k_, now.k);
  v_ = wider(v_, now.v);
}

at::Tensor KvCache::attend(const QueryKeyValue& now, int64_t begin) {
  const int64_t T = now.q.size(2), end = begin + T;
  const bool other_rows = !k_.defined() || k_.size(0) != now.k.size(0);
  if (begin == 0 || other_rows) end_ = 0;
  core::check(begin <= end_,
              "attention with a cache: positions {} to {} were asked for, but the cache ends at {}",
              begin, end, end_);
  reserve(now, end);
  k_.narrow(2, begin, T).copy_(now.k);
  v_.narrow(2, begin, T).copy_(now.v);
  end_ = end;
  const at::Tensor k = k_.narrow(2, 0, end), v = v_.narrow(2, 0, end);
  // On a GPU a library's kernels may be prepared anew for every length of the keys.
  if (T == 1 && now.q.is_cuda())
    return attend_to_all(now.q, k, v).transpose(1, 2).reshape({now.q.size(0), T, -1});
  // A single query sees everything; a first call is causal; otherwise the mask says it.
  const bool causal = begin == 0 && T > 1, masked = begin > 0 && T > 1;
  const std::optional<at::Tensor> mask =
      masked ? std::optional(visible(begin, end, now.q.device())) : std::nullopt;
  const at::Tensor y =
      at::scaled_dot_product_attention(now.q, k, v, mask, 0.0, causal, std::nullopt,
                                       /*enable_gqa=*/now.q.size(1) != now.k.size(1));
  return y.transpose(1, 2).reshape({now.q.size(0), T, -1});
}

KvCaches::KvCaches(std::shared_ptr<torch::nn::Module> model) : model_(std::move(model)) {
  for (const auto& module : model_->modules())
    if (auto* attention = module->as<CausalAttentionImpl>()) attentions_.push_back(attention);
  core::check(!attentions_.empty(), "this model has no attention that a cache could serve");
  for (CausalAttentionImpl* attention : attentions_)
    attention->set_cache(std::make_shared<KvCache>());
}

KvCaches::~KvCaches() {
  for (CausalAttentionImpl* attention : attentions_) attention->set_cache(nullptr);
}

}  // namespace trireme::nn
