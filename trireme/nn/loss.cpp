#include "trireme/nn/loss.h"

#include <torch/autograd.h>

#include <limits>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"
#include "trireme/cuda/cross_entropy.h"
#include "trireme/cuda/matmul.h"
#include "trireme/nn/matmul.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

at::Tensor in_float32(const at::Tensor& x) {
  return comm::is_half(x.scalar_type()) ? x.to(at::kFloat) : x;
}

/// x W^T + b, in at least float32; the bias may have another dtype.
at::Tensor logits_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!bias.defined() || bias.scalar_type() == weight.scalar_type())
    return in_float32(product(x, weight, bias));
  return in_float32(product(x, weight)).add_(bias);
}

/// The loss of each row, and its softmax in place of the logits, on one rank. The loss is
///
///   log(sum over all classes of exp(logit)) - logit[target]  =  -log(softmax[target])
///
/// so the logits are read only once. A probability that is too small for the log is rare (the host
/// looks at the values to see whether there is one). Its loss is computed from the largest
/// probability of the row, which is at least 1 / classes:
///
///   largest logit - logit[target] - log(largest probability)
at::Tensor softmax_alone(at::Tensor& logits_NV, const at::Tensor& target_N1, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& bias) {
  constexpr double kTiny = 1e-30;
  const at::Tensor safe = target_N1.clamp_min(0);
  const at::Tensor chosen = logits_NV.gather(1, safe);
  at::_softmax_out(logits_NV, logits_NV, 1, false);
  const at::Tensor chance = logits_NV.gather(1, safe);
  const at::Tensor nats = -chance.log();
  if (chance.min().item<double>() >= kTiny) return nats;
  const auto [top, where] = logits_NV.max(1, /*keepdim=*/true);
  const at::Tensor largest = logits_of(x, weight, bias).gather(1, where);
  return at::where(chance < kTiny, largest - chosen - top.log(), nats);
}

/// The same without looking at values, and also where other ranks have other classes. Each rank
/// computes the log of the sum over its own classes from its softmax,
///
///   lse = top - log(largest probability), because that is 1 / sum(exp(logit - top)),
///
/// and sends it to the others, with the target's logit if it has that.
at::Tensor softmax_over_ranks(at::Tensor& logits_NV, const at::Tensor& target_N1,
                              const ClassShard& classes) {
  const at::Tensor own = target_N1 - classes.mine.begin;
  const at::Tensor outside = at::logical_or(own < 0, own >= classes.mine.count);
  const at::Tensor chosen =
      logits_NV.gather(1, own.masked_fill(outside, 0)).masked_fill_(outside, 0);
  const at::Tensor top = logits_NV.amax(1, /*keepdim=*/true);
  at::_softmax_out(logits_NV, logits_NV, 1, false);
  const at::Tensor lse = top - logits_NV.amax(1, /*keepdim=*/true).log();
  if (classes.group == nullptr) return lse - chosen;
  const at::Tensor mine = at::stack({lse, chosen});
  const int64_t ranks = classes.group->size();
  at::Tensor told = at::empty({ranks * 2, mine.size(1), 1}, mine.options());
  classes.group->all_gather(told, mine).wait();
  told = told.view({ranks, 2, -1, 1});
  const at::Tensor total = told.select(1, 0).logsumexp(0);
  logits_NV.mul_((lse - total).exp_());
  return total - told.select(1, 1).sum(0);
}

void input_gradient_into(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight) {
  if (!cuda::input_gradient(dx, dy, weight)) dx.copy_(input_gradient(dy, weight));
}

/// Adds dy^T x to a sum over chunks in float32; with one chunk only (`sum` is undefined) it is the
/// gradient itself, in 16 bits.
void add_weight_gradient(at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool first) {
  if (!sum.defined())
    sum = weight_gradient(dy, x);
  else if (cuda::weight_gradient(sum, dy, x, /*add=*/!first))
    return;
  else
    first ? sum.copy_(weight_gradient(dy, x)) : sum.add_(weight_gradient(dy, x));
}

/// The arguments of a loss besides its tensors.
struct LossArgs {
  ClassShard classes;
  LossChunks chunks;
  at::Tensor scale;  // of the gradients; undefined: 1
  // Will there be a backward? (In an evaluation the weights require gradients too.)
  bool trains = true;
};

/// Per chunk of rows:
///
///   l = x W^T + b       logits; from here to the next product in float32
///   sum += lse(l) - l[target]
///   l = softmax(l) - onehot(target)      in place; ignored rows become 0
///   l *= scale
///   dx = l W            dW += l^T x      db += sum of l
struct LinearCrossEntropy : ag::Function<LinearCrossEntropy> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x_NC,
                            const at::Tensor& weight_VC, const std::optional<at::Tensor>& bias_V,
                            const at::Tensor& targets_N, const LossArgs& args) {
    const ClassShard& classes = args.classes;
    const at::Tensor bias = bias_V.value_or(at::Tensor());
    const bool needs_x = args.trains && x_NC.requires_grad(),
               needs_weight = args.trains && weight_VC.requires_grad(),
               needs_bias = args.trains && bias.defined() && bias.requires_grad();
    const int64_t rows = x_NC.size(0);
    const int64_t chunk_rows =
        x_NC.is_cpu() ? std::min(rows, args.chunks.rows) : even_chunk(rows, args.chunks.rows);
    const bool fused = classes.group == nullptr && on_gpu_in_16_bits(x_NC, weight_VC, bias);
    const bool may_look = args.chunks.may_look;
    const at::Tensor dx = needs_x ? at::empty_like(x_NC) : at::Tensor();
    const at::ScalarType dtype = x_NC.scalar_type();
    const bool half = comm::is_half(dtype);
    const auto accumulator = weight_VC.options().dtype(half ? at::kFloat : dtype);
    at::Tensor dweight = needs_weight && chunk_rows != rows
                             ? at::empty(weight_VC.sizes(), accumulator.requires_grad(false))
                             : at::Tensor();
    if (needs_weight && rows == 0) dweight = at::zeros_like(weight_VC);
    const at::Tensor dbias =
        needs_bias ? at::zeros(bias.sizes(), accumulator.requires_grad(false)) : at::Tensor();
    at::Tensor sum = at::zeros({}, x_NC.options().dtype(at::kDouble));
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t count = std::min(chunk_rows, rows - begin);
      const at::Tensor x = x_NC.narrow(0, begin, count);
      const at::Tensor target = targets_N.narrow(0, begin, count).unsqueeze(1);
      if (fused) {
        const at::Tensor logits = product(x, weight_VC, bias);
        const bool gradient = needs_x || needs_weight || needs_bias;
        sum += cuda::cross_entropy(logits, target.squeeze(1).to(at::kLong).contiguous(), kIgnored,
                                   gradient, args.scale)
                   .sum(at::kDouble);
        if (needs_bias) dbias.add_(bias_gradient(logits, logits.scalar_type()));
        if (needs_x) input_gradient_into(dx.narrow(0, begin, count), logits, weight_VC);
        if (needs_weight) add_weight_gradient(dweight, logits, x, /*first=*/begin == 0);
        continue;
      }
      const at::Tensor ignored = target == kIgnored;
      at::Tensor logits = logits_of(x, weight_VC, bias);
      at::Tensor nats = classes.group == nullptr && may_look
                            ? softmax_alone(logits, target, x, weight_VC, bias)
                            : softmax_over_ranks(logits, target, classes);
      if (!may_look)  // nobody has looked whether the targets are classes
        nats.masked_fill_(at::logical_or(target < 0, target >= classes.all),
                          std::numeric_limits<double>::quiet_NaN());
      sum += nats.masked_fill_(ignored, 0).sum(at::kDouble);
      if (!needs_x && !needs_weight && !needs_bias) continue;
      const at::Tensor own = target - classes.mine.begin;
      const at::Tensor here = at::logical_and(own >= 0, own < classes.mine.count);
      logits.scatter_add_(1, own.masked_fill(here.logical_not(), 0),
                          here.to(logits.scalar_type()).neg_());
      if (!may_look || ignored.any().item<bool>()) logits.masked_fill_(ignored, 0);
      if (args.scale.defined()) logits.mul_(args.scale);
      if (needs_bias) dbias.add_(logits.sum(0));
      const at::Tensor dlogits = logits.to(dtype);
      if (needs_x) dx.narrow(0, begin, count).copy_(input_gradient(dlogits, weight_VC));
      if (needs_weight && count == rows)
        dweight = weight_gradient(dlogits, x);
      else if (needs_weight && half)
        begin == 0 ? dweight.copy_(weight_gradient(dlogits, x))
                   : dweight.add_(weight_gradient(dlogits, x));
      else if (needs_weight)
        at::addmm_out(dweight, dweight, dlogits.t(), x, begin == 0 ? 0 : 1, 1);
    }
    context->saved_data["dx"] = dx;
    context->saved_data["dweight"] = dweight;
    context->saved_data["dbias"] = dbias;
    context->saved_data["scale"] = args.scale;
    return sum.to(half ? at::kFloat : dtype);
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "linear_cross_entropy: its gradients are computed with the loss and have none of "
                "their own (create_graph); use nn::cross_entropy of the head's logits instead");
    // Moved out instead of copied, because they serve one backward only.
    TORCH_CHECK(context->saved_data.count("taken") == 0,
                "linear_cross_entropy: backward was called twice on one loss");
    context->saved_data["taken"] = true;
    const at::Tensor scale = context->saved_data["scale"].toTensor();
    const at::Tensor factor = scale.defined() ? gradients[0] / scale : gradients[0];
    const bool is_one = factor.device().is_cpu() && factor.item<double>() == 1;
    const auto scaled = [&](const char* name) {
      at::Tensor gradient = context->saved_data[name].toTensor();
      context->saved_data[name] = at::Tensor();
      if (!gradient.defined()) return gradient;
      return is_one ? gradient : gradient.mul_(factor);
    };
    return {scaled("dx"), scaled("dweight"), scaled("dbias"), {}, {}};
  }
};

void check_targets(const at::Tensor& targets, int64_t classes) {
  // On a GPU the host would have to wait for the answer: there, such a target gives nan.
  if (targets.numel() == 0 || !targets.is_cpu()) return;
  const auto [least, most] = at::aminmax(targets);
  const auto low = least.item<int64_t>(), high = most.item<int64_t>();
  if (high < classes &&
      (low >= 0 || at::logical_or(targets >= 0, targets == kIgnored).all().item<bool>()))
    return;
  throw Error(fmt::format("a target of {} is not one of the {} classes (0 to {}, or {} for none)",
                          high >= classes ? high : low, classes, classes - 1, kIgnored));
}

at::Tensor weight_of(const at::Tensor& targets) {
  return (targets != kIgnored).sum().to(at::kDouble);
}

}  // namespace

LossChunks loss_chunks(c10::DeviceType device, int64_t classes, int ranks, int64_t item_bytes) {
  const int64_t mine = std::max<int64_t>(1, classes / ranks);
  if (device == c10::DeviceType::CPU) {
    constexpr int64_t kElems = int64_t{1} << 20;
    const int64_t rows = kElems * ranks / std::max<int64_t>(1, classes);
    return {.rows = std::clamp<int64_t>(rows, 32, 1024), .may_look = true};
  }
  constexpr int64_t kBytes = int64_t{1} << 30;
  return {.rows = std::max<int64_t>(1, kBytes / (mine * item_bytes)), .may_look = false};
}

int64_t even_chunk(int64_t rows, int64_t most) {
  if (rows <= most) return rows;
  const int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor flat = targets.reshape({-1});
  check_targets(flat, logits.size(-1));
  return {at::cross_entropy_loss(in_float32(logits).reshape({-1, logits.size(-1)}), flat, {},
                                 at::Reduction::Sum, kIgnored),
          weight_of(flat)};
}

Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const ClassShard& classes,
                          const at::Tensor& scale) {
  const int ranks = classes.group == nullptr ? 1 : classes.group->size();
  return linear_cross_entropy(
      x, weight, bias, targets, classes,
      loss_chunks(x.device().type(), classes.all, ranks, static_cast<int64_t>(x.element_size())),
      scale);
}

Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const ClassShard& classes, LossChunks chunks,
                          const at::Tensor& scale) {
  const at::Tensor flat = targets.reshape({-1});
  check_targets(flat, classes.all);
  core::check(
      x.numel() == flat.numel() * x.size(-1),
      "cross-entropy of {} rows for {} targets; where positions are cut, the head must be cut "
      "by vocabulary",
      x.numel() / std::max<int64_t>(1, x.size(-1)), flat.numel());
  return {
      LinearCrossEntropy::apply(x.reshape({-1, x.size(-1)}).contiguous(), weight,
                                bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
                                flat, LossArgs{classes, chunks, scale, at::GradMode::is_enabled()}),
      weight_of(flat)};
}

Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& targets) {
  return linear_cross_entropy(x, weight, {}, targets,
                              {.mine = {0, weight.size(0)}, .all = weight.size(0)});
}

}  // namespace trireme::nn
