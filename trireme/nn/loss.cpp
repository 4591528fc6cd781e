#include "trireme/nn/loss.h"

#include <torch/autograd.h>

#include "trireme/core/error.h"
#include "trireme/nn/matmul.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// Rows whose logits are in memory at a time: about 4 MiB of them.
int64_t rows_of_chunk(const at::Tensor& weight) {
  constexpr int64_t kElems = int64_t{1} << 20;
  return std::clamp<int64_t>(kElems / weight.size(0), 32, 1024);
}

/// Per chunk of rows:
///
///   l = x W^T           logits
///   sum += lse(l) - l[target]
///   l = softmax(l) - onehot(target)      in place; rows that are ignored become 0
///   dx = l W            dW += l^T x
struct LinearCrossEntropy : ag::Function<LinearCrossEntropy> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x_NC,
                            const at::Tensor& weight_VC, const at::Tensor& targets_N) {
    const bool needs_x = x_NC.requires_grad(), needs_weight = weight_VC.requires_grad();
    const int64_t rows = x_NC.size(0), chunk_rows = std::min(rows, rows_of_chunk(weight_VC));
    const at::Tensor dx = needs_x ? at::empty_like(x_NC) : at::Tensor();
    at::Tensor dweight = needs_weight ? at::empty_like(weight_VC) : at::Tensor();
    if (needs_weight && rows == 0) dweight.zero_();
    at::Tensor sum = at::zeros({}, x_NC.options().dtype(at::kDouble));
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t count = std::min(chunk_rows, rows - begin);
      const at::Tensor x = x_NC.narrow(0, begin, count);
      const at::Tensor target = targets_N.narrow(0, begin, count);
      const at::Tensor ignored = target == kIgnored;
      const at::Tensor safe = target.clamp_min(0).unsqueeze(1);
      at::Tensor logits = product(x, weight_VC);
      const at::Tensor chosen = logits.gather(1, safe);
      at::_softmax_out(logits, logits, 1, false);
      const at::Tensor chance = logits.gather(1, safe);
      at::Tensor nats = -chance.log();
      if (chance.min().item<double>() < kTiny) {
        // Too small to take the log of: from the largest one, whose chance is 1 / classes or more.
        const auto [top, where] = logits.max(1, /*keepdim=*/true);
        const at::Tensor largest = at::mm(x, weight_VC.t()).gather(1, where);
        nats = at::where(chance < kTiny, largest - chosen - top.log(), nats);
      }
      sum += nats.masked_fill(ignored.unsqueeze(1), 0).sum(at::kDouble);
      if (!needs_x && !needs_weight) continue;
      logits.scatter_add_(1, safe, at::full_like(chance, -1));
      if (ignored.any().item<bool>()) logits.masked_fill_(ignored.unsqueeze(1), 0);
      if (needs_x) dx.narrow(0, begin, count).copy_(product(logits, weight_VC.t()));
      if (needs_weight) at::addmm_out(dweight, dweight, logits.t(), x, begin == 0 ? 0 : 1, 1);
    }
    context->saved_data["dx"] = dx;
    context->saved_data["dweight"] = dweight;
    return sum.to(x_NC.scalar_type());
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    // Taken out, not copied: they are computed for one backward.
    TORCH_CHECK(context->saved_data.count("taken") == 0,
                "linear_cross_entropy: backward was called twice on one loss");
    context->saved_data["taken"] = true;
    const auto scaled = [&](const char* name) {
      at::Tensor gradient = context->saved_data[name].toTensor();
      context->saved_data[name] = at::Tensor();
      if (!gradient.defined()) return gradient;
      const bool is_one = gradients[0].device().is_cpu() && gradients[0].item<double>() == 1;
      return is_one ? gradient : gradient.mul_(gradients[0]);
    };
    return {scaled("dx"), scaled("dweight"), {}};
  }

  static constexpr double kTiny = 1e-30;
};

void check_targets(const at::Tensor& targets, int64_t classes) {
  if (targets.numel() == 0) return;
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

Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor flat = targets.reshape({-1});
  check_targets(flat, logits.size(-1));
  return {at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), flat, {},
                                 at::Reduction::Sum, kIgnored),
          weight_of(flat)};
}

Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& targets) {
  const at::Tensor flat = targets.reshape({-1});
  check_targets(flat, weight.size(0));
  return {LinearCrossEntropy::apply(x.reshape({-1, x.size(-1)}).contiguous(), weight, flat),
          weight_of(flat)};
}

}  // namespace trireme::nn
