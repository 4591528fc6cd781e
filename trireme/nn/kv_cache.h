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

  /// The same of a single query at a position that only the device knows, so that the call can be
  /// recorded and repeated. It looks at all of the memory, and a mask hides what comes later:
  ///
  ///   positions   0 . . . . . moving . . . . . . capacity
  ///               |  seen           | chance 0   |
  ///
  /// There must be room for the position (`reserve`), and whoever repeats the call says so
  /// (`grown_to`).
  at::Tensor attend_at(const at::Tensor& moving, const QueryKeyValue& now);
  /// Makes room for the positions before `end`, after a first call of `attend`.
  void reserve(int64_t end);
  void grown_to(int64_t end) { end_ = end; }
  int64_t capacity() const { return k_.defined() ? k_.size(2) : 0; }
  int64_t rows() const { return k_.defined() ? k_.size(0) : 0; }
  /// How often the memory became another one.
  int64_t moves() const { return moves_; }

 private:
  void reserve_like(const at::Tensor& k, const at::Tensor& v, int64_t end);

  at::Tensor k_, v_;  // [B, K, capacity, D]
  int64_t end_ = 0, moves_ = 0;
};

/// Gives every CausalAttention of a model a cache, for as long as this lives. The model then must
/// be called without gradients, and `Where::positions` says how many came before.
class KvCaches {
 public:
  /// Throws MisuseError if the model has no such layer.
  explicit KvCaches(std::shared_ptr<torch::nn::Module> model);
  ~KvCaches();
  KvCaches(const KvCaches&) = delete;
  KvCaches& operator=(const KvCaches&) = delete;

  /// As in KvCache. All layers keep the same positions.
  void reserve(int64_t end);
  void grown_to(int64_t end);
  int64_t capacity() const;
  int64_t rows() const;
  int64_t moves() const;
  /// Can a call be repeated at a moving position?
  bool may_move() const;

 private:
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<CausalAttentionImpl*> attentions_;
};

}  // namespace trireme::nn
