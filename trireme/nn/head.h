#pragma once

#include "trireme/nn/linear.h"
#include "trireme/nn/loss.h"

namespace trireme::nn {

/// The last Linear of a model that chooses among classes. Cut by Vocabulary each rank has some of
/// the classes: the loss is computed without anybody seeing all logits, and `forward` gives all of
/// them to every rank.
class HeadImpl : public LayerImpl {
 public:
  struct Options {
    bool bias = true;
    double deviation = 0;  ///< as a Linear's
    at::Tensor tied = {};  ///< the weight of another layer, [classes, width], to use as this one's
  };
  HeadImpl(int64_t width, int64_t classes, Options options);

  /// Cross-entropy of the classes that `x` chooses, logits never whole.
  Loss loss(const Flow& x, const at::Tensor& targets);

  at::Tensor weight, bias;

  Output output() const override { return std::vector<Cut>{}; }  // all logits, of all positions
  std::map<std::string, Layout> layouts(Style style, Sequence sequence) const override;

 protected:
  Flow compute(const Flow& in) override;

 private:
  Classes classes() const;

  int64_t width_, classes_;
  bool tied_;
};
TORCH_MODULE(Head);

}  // namespace trireme::nn
