#include "trireme/nn/model.h"

#include <ATen/ops/arange.h>

#include <numeric>

#include "trireme/core/error.h"
#include "trireme/nn/segments.h"

namespace trireme::nn {

Loss ModelImpl::loss(const Flow& inputs, const at::Tensor& targets) {
  const Chain links = chain();
  core::check(links.loss != nullptr, "model '{}' has no loss: write chain(), or loss()",
              torch::nn::Module::name());
  Flow flow = inputs;
  if (recomputes_segments_)
    for (const Segment& one : sqrt_segments(links.between(0, links.size()), LastSegment::Kept))
      flow = one.forward(std::move(flow));
  else
    for (const Link& link : links.links) flow = link.forward(std::move(flow));
  return links.loss(flow, targets);
}

MicroBatch counting_tokens(int64_t rows, int64_t positions, int64_t vocab) {
  auto where = std::make_shared<Where>();
  where->step = 1;
  where->sample_ids.resize(static_cast<std::size_t>(rows));
  std::iota(where->sample_ids.begin(), where->sample_ids.end(), 0);
  const at::Tensor all = at::arange(rows * (positions + 1), at::kLong).remainder(vocab);
  const at::Tensor tokens = all.view({rows, positions + 1});
  return {Flow(tokens.narrow(1, 0, positions).contiguous(), std::move(where)),
          tokens.narrow(1, 1, positions).contiguous()};
}

}  // namespace trireme::nn
