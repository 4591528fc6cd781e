#pragma once

#include <memory>

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
  /// How many positions were fed.
  int64_t position() const { return position_; }
  /// Begins anew.
  void restart() { position_ = 0; }

 private:
  std::shared_ptr<nn::ModelImpl> model_;
  nn::Chain chain_;
  nn::KvCaches caches_;
  int64_t position_ = 0;
};

}  // namespace trireme::infer
