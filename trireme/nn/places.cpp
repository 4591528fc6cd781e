#include "trireme/nn/places.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "trireme/core/error.h"

namespace trireme::nn {

at::Tensor places_of(const LayerImpl& layer, const Flow& in) {
  const at::Tensor& x = in.x();
  const int64_t rows = x.size(0), positions = x.dim() > 2 ? x.size(1) : 1;
  core::check(
      in.where != nullptr && static_cast<int64_t>(in.where->sample_ids.size()) == rows,
      "'{}' in training needs to know its samples: pass a Flow whose Where names {} of them "
      "(it names {}), or call eval()",
      layer.full_name(), rows, in.where == nullptr ? 0 : in.where->sample_ids.size());
  const at::Tensor samples = at::tensor(in.where->sample_ids, at::kLong);
  const at::Tensor spots = at::tensor(in.where->positions.of(positions).each(), at::kLong);
  return at::stack({samples.unsqueeze(1).expand({rows, positions}).reshape({-1}),
                    spots.unsqueeze(0).expand({rows, positions}).reshape({-1})},
                   1);
}

}  // namespace trireme::nn
