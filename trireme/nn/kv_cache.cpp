#include "trireme/nn/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/nn/layers.h"

namespace trireme::nn {

namespace {

/// The positions that each of T queries from `begin` on may see, of `end`: [T, end].
at::Tensor visible(int64_t begin, int64_t end, c10::Device device) {
  return at::ones({end - begin, end}, at::TensorOptions().dtype(at::kBool).device(device))
      .tril(begin);
}

/// Attention of a single query, [B, H, 1, D], to everything or to what is not `hidden`: three small
/// products. The queries of one head of keys are rows of one product, so that no key is read twice.
at::Tensor attend_to_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& hidden = {}) {
  const int64_t B = q.size(0), K = k.size(1), D = q.size(3), together = q.size(1) / K;
  const at::Tensor rows =
      (q * (1 / std::sqrt(static_cast<double>(D)))).reshape({B, K, together, D});
  at::Tensor scores = at::matmul(rows, k.transpose(-2, -1));
  if (hidden.defined()) scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), v).view({B, K * together, 1, D});
}

}  // namespace

/// Room for `end` positions; what is there stays. Doubled, so that a position is copied twice at
/// most. Zeros, because a chance of 0 times whatever lies in fresh memory may be nan.
void KvCache::reserve_like(const at::Tensor& k, const at::Tensor& v, int64_t end) {
  constexpr int64_t kFewest = 64;
  const bool fits = k_.defined() && k_.size(0) == k.size(0);
  const int64_t capacity = fits ? k_.size(2) : 0;
  if (end <= capacity) return;
  const auto wider = [&, wanted = std::max({end, 2 * capacity, kFewest})](const at::Tensor& old,
                                                                          const at::Tensor& like) {
    at::Tensor fresh =
        at::zeros({like.size(0), like.size(1), wanted, like.size(3)}, like.options());
    if (end_ > 0) fresh.narrow(2, 0, end_).copy_(old.narrow(2, 0, end_));
    return fresh;
  };
  const at::Tensor wide_k = wider(k_, k), wide_v = wider(v_, v);  // `k` may be k_ itself
  k_ = wide_k;
  v_ = wide_v;
  ++moves_;
}

void KvCache::reserve(int64_t end) {
  core::check(k_.defined(), "a cache that has seen nothing does not know its shape");
  reserve_like(k_, v_, end);
}

at::Tensor KvCache::attend(const QueryKeyValue& now, int64_t begin) {
  const int64_t T = now.q.size(2), end = begin + T;
  const bool other_rows = !k_.defined() || k_.size(0) != now.k.size(0);
  if (begin == 0 || other_rows) end_ = 0;
  core::check(begin <= end_,
              "attention with a cache: positions {} to {} were asked for, but the cache ends at {}",
              begin, end, end_);
  reserve_like(now.k, now.v, end);
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

at::Tensor KvCache::attend_at(const at::Tensor& moving, const QueryKeyValue& now) {
  core::check(now.q.size(2) == 1 && k_.defined() && k_.size(0) == now.k.size(0),
              "attention at a moving position: one query after a text that the cache has seen");
  k_.index_copy_(2, moving, now.k);
  v_.index_copy_(2, moving, now.v);
  const at::Tensor hidden = at::arange(capacity(), moving.options()) > moving;
  return attend_to_all(now.q, k_, v_, hidden).transpose(1, 2).reshape({now.q.size(0), 1, -1});
}

KvCaches::KvCaches(std::shared_ptr<torch::nn::Module> model) : model_(std::move(model)) {
  for (const auto& module : model_->modules())
    if (auto* attention = module->as<CausalAttentionImpl>()) attentions_.push_back(attention);
  core::check(!attentions_.empty(), "this model has no attention that a cache could serve");
  for (const CausalAttentionImpl* attention : attentions_)
    core::check(attention->cache() == nullptr,
                "this model has key-value caches already: end whoever uses them first");
  for (CausalAttentionImpl* attention : attentions_)
    attention->set_cache(std::make_shared<KvCache>());
}

void KvCaches::reserve(int64_t end) {
  for (CausalAttentionImpl* attention : attentions_) attention->cache()->reserve(end);
}

void KvCaches::grown_to(int64_t end) {
  for (CausalAttentionImpl* attention : attentions_) attention->cache()->grown_to(end);
}

int64_t KvCaches::capacity() const {
  return attentions_.front()->cache()->capacity();
}

int64_t KvCaches::rows() const {
  return attentions_.front()->cache()->rows();
}

int64_t KvCaches::moves() const {
  return attentions_.front()->cache()->moves();
}

bool KvCaches::may_move() const {
  return std::ranges::none_of(
      attentions_, [](const CausalAttentionImpl* one) { return one->depends_on_length(); });
}

KvCaches::~KvCaches() {
  for (CausalAttentionImpl* attention : attentions_) attention->set_cache(nullptr);
}

}  // namespace trireme::nn
