#include "trireme/nn/model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <functional>
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

namespace {

/// Of the first samples, at step 1.
std::shared_ptr<Where> where_of_first(int64_t rows) {
  auto where = std::make_shared<Where>();
  where->step = 1;
  where->sample_ids.resize(static_cast<std::size_t>(rows));
  std::iota(where->sample_ids.begin(), where->sample_ids.end(), 0);
  return where;
}

}  // namespace

MicroBatch counting_images(const std::vector<int64_t>& shape, int64_t classes) {
  constexpr int64_t kPeriod = 251;  // a prime, so that no two images are alike
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
  const at::Tensor values = at::arange(count, at::kFloat).remainder(kPeriod) / kPeriod - 0.5;
  return {Flow(values.view(shape), where_of_first(shape[0])),
          at::arange(shape[0], at::kLong).remainder(classes)};
}

MicroBatch counting_tokens(int64_t rows, int64_t positions, int64_t vocab) {
  return counting_tokens(rows, Positions({{0, positions}}, positions), vocab);
}

MicroBatch counting_tokens(int64_t rows, const Positions& positions, int64_t vocab) {
  const int64_t whole = positions.whole();
  const at::Tensor tokens =
      at::arange(rows * (whole + 1), at::kLong).remainder(vocab).view({rows, whole + 1});
  std::vector<at::Tensor> inputs, targets;
  for (const Range& one : positions.ranges()) {
    inputs.push_back(tokens.narrow(1, one.begin, one.count));
    targets.push_back(tokens.narrow(1, one.begin + 1, one.count));
  }
  auto where = where_of_first(rows);
  where->positions = positions;
  return {Flow(at::cat(inputs, 1), std::move(where)), at::cat(targets, 1)};
}

}  // namespace trireme::nn
