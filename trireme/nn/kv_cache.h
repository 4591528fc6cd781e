#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "trireme/nn/attention.h"

namespace trireme::nn {

class CausalAttentionImpl;

/// The keys and values of the positions that a layer of attention has seen, so that a model that
/// writes a text computes each position once. Keys are stored as attention uses them: rotated, if
/// the model rotates them.
///
///   positions   0 . . . . begin . . . . end . . . . . capacity
///               | earlier  | this call  | not used yet |
///   queries                [---- T ----]               each sees itself and all before it
class KvCache {
 public:
  /// Attention of the queries at positions [begin, begin + T), whose keys and values it keeps, over
  /// all positions up to theirs: [B, T, H D]. What was kept from `begin` on is replaced. Not
  /// differentiable. Throws MisuseError if positions before `begin` are missing.
  at::Tensor attend(const QueryKeyValue& now, int64_t begin);

 private:
  void reserve(const QueryKeyValue& now, int64_t end);

  at::Tensor k_, v_;  // [B, K, capacity, D]
  int64_t end_ = 0;
};

/// Gives every CausalAttention of a model a cache, for as long as this lives. The model then must
/// be called without gradients, and `Where::seq_begin` says how many positions came before.
class KvCaches {
 public:
  /// Throws MisuseError if the model has no such layer.
  explicit KvCaches(std::shared_ptr<torch::nn::Module> model);
  ~KvCaches();
  KvCaches(const KvCaches&) = delete;
  KvCaches& operator=(const KvCaches&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<CausalAttentionImpl*> attentions_;
};

}  // namespace trireme::nn
