#include "trireme/nn/head.h"

#include "trireme/core/error.h"

namespace trireme::nn {

HeadImpl::HeadImpl(int64_t width, int64_t classes, Options options)
    : width_(width), classes_(classes), tied_(options.tied.defined()) {
  weight = tied_ ? tied("weight", options.tied)
                 : parameter("weight", {classes, width}, linear_rule(width, options.deviation));
  if (options.bias)
    bias = parameter("bias", {classes},
                     options.deviation > 0 ? InitRule::zeros() : linear_rule(width, 0));
}

Layouts HeadImpl::layouts(Style style, Sequence sequence) const {
  if (style != Style::Vocabulary) return LayerImpl::layouts(style, sequence);
  Layouts all;
  if (!tied_) all.emplace("weight", Layout({classes_, width_}, {{Axis::Tensor, 0}}));
  if (bias.defined()) all.emplace("bias", Layout({classes_}, {{Axis::Tensor, 0}}));
  return all;
}

ClassShard HeadImpl::shard() const {
  ClassShard shard{.mine = {0, classes_}, .all = classes_};
  if (style() == Style::Vocabulary && region()->size() > 1) {
    shard.group = &region()->group();
    shard.mine = even_range(classes_, region()->size(), region()->group().rank());
  }
  core::check(weight.size(0) == shard.mine.count,
              "head '{}': this rank has {} of the {} classes, but its tied weight has {} rows; cut "
              "both by vocabulary, or neither",
              full_name(), shard.mine.count, classes_, weight.size(0));
  return shard;
}

Loss HeadImpl::loss(const Flow& x, const at::Tensor& targets) {
  const ClassShard classes = shard();
  const Flow whole = classes.group == nullptr ? x : region()->enter(x);
  // The gradients are computed with the loss: backward only scales them.
  const Flow out = with_weights(
      whole, {.run =
                  [&](const Flow& flow) {
                    Loss loss = linear_cross_entropy(
                        flow.x().to(weight.scalar_type()), weight, bias, targets, classes,
                        flow.where != nullptr ? flow.where->loss_scale : at::Tensor());
                    return Flow({std::move(loss.sum), std::move(loss.weight)}, flow.where);
                  },
              .backward_reads_weights = false});
  return {out.tensors[0], out.tensors[1]};
}

Loss classify(HeadImpl& head, const Flow& x, const at::Tensor& targets) {
  Loss loss = head.loss(x, targets);
  if (head.is_training()) return loss;
  const at::NoGradGuard guard;
  const at::Tensor found = head.forward(x).x().argmax(-1);
  loss.correct = (found == targets).sum().to(at::kDouble);
  return loss;
}

Flow HeadImpl::compute(const Flow& in) {
  const ClassShard classes = shard();
  if (classes.group == nullptr) return in.with(linear(in.x(), weight, bias));
  const Flow whole = region()->enter(in);
  return whole.with(
      functional::join(linear(whole.x(), weight, bias), -1, *classes.group, classes.all));
}

}  // namespace trireme::nn
