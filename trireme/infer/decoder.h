#pragma once

#include <memory>
#include <optional>

#include "trireme/cuda/graph.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/nn/model.h"

namespace trireme::infer {

/// Lets a model of language read tokens one after the other, or many at once:
///
///   feed(prompt [B, n])   positions 0 .. n-1     logits [B, vocab] of what comes at n
///   feed(token [B, 1])    position n             logits of what comes at n + 1
///
/// Only the last position goes through the head. Every position is computed once: attention keeps
/// keys and values.
class Decoder {
 public:
  /// Throws ConfigError if the model cannot write text.
  explicit Decoder(std::shared_ptr<nn::ModelImpl> model);

  /// Collective, if the model is cut.
  at::Tensor feed(const at::Tensor& tokens);
  /// On a GPU, steps of one position are recorded once and repeated from now on, as long as they
  /// are of positions before `positions`: the model must have these. Otherwise its hundreds of
  /// small kernels wait for the host. Not for a model that is cut; elsewhere it changes nothing.
  void repeat_steps(int64_t positions);
  /// How many positions were fed.
  int64_t position() const { return position_; }
  /// Begins anew.
  void restart() { position_ = 0; }

 private:
  /// A step that is recorded, and the memory that it reads and writes.
  struct Step {
    at::Tensor token = {}, position = {};          // [B, 1] and [1]
    at::Tensor logits = {};                        // of the last repetition
    std::unique_ptr<cuda::Graph> graph = nullptr;  // nullptr: it ran once, to prepare what it needs
    int64_t moves = 0;                             // of the caches, when it was made
  };

  at::Tensor logits_of(const at::Tensor& tokens, nn::Where where);
  bool repeats(const at::Tensor& tokens) const;
  at::Tensor repeat(const at::Tensor& token);

  std::shared_ptr<nn::ModelImpl> model_;
  at::Device device_;
  nn::Chain chain_;
  nn::KvCaches caches_;
  int64_t position_ = 0;
  int64_t repeats_before_ = 0;  // this position
  std::optional<Step> step_;
};

}  // namespace trireme::infer
