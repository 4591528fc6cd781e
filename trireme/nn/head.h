#pragma once

#include "trireme/nn/linear.h"
#include "trireme/nn/loss.h"

namespace trireme::nn {

/// The last Linear of a model that chooses among classes. If it is cut by Vocabulary, each rank has
/// some of the classes: no rank sees all logits for the loss, while `forward` gives every rank all
/// of them.
class HeadImpl : public LayerImpl {
 public:
  struct Options {
    bool bias = true;
    double deviation = 0;  ///< as in LinearImpl::Options
    at::Tensor tied = {};  ///< the weight of another layer, [classes, width], to share
  };
  HeadImpl(int64_t width, int64_t classes, Options options);

  /// The cross-entropy, without ever holding all logits in memory.
  Loss loss(const Flow& x, const at::Tensor& targets);

  at::Tensor weight, bias;

  Output output() const override { return std::vector<Cut>{}; }  // every rank has all logits
  Layouts layouts(Style style, Sequence sequence) const override;

 protected:
  Flow compute(const Flow& in) override;

 private:
  ClassShard shard() const;

  int64_t width_, classes_;
  bool tied_;
};
TORCH_MODULE(Head);

/// The cross-entropy of one class for each row of x, [rows, width]. In evaluation it also counts
/// the rows whose largest logit is the target's (`Loss::correct`).
Loss classify(HeadImpl& head, const Flow& x, const at::Tensor& targets);

}  // namespace trireme::nn
