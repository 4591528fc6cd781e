#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <array>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"
#include "trireme/nn/layers.h"

namespace trireme::nn {

namespace {

constexpr int64_t kWords = 4;  // elements that share one call of Philox

/// The chance of one layer at one step: the key of its Philox.
uint64_t key_of(const LayerImpl& layer, int64_t step) {
  const std::array<uint64_t, 3> what = {layer.seed(), core::hash64(layer.full_name()),
                                        static_cast<uint64_t>(step)};
  return core::hash64(what.data(), sizeof what);
}

template <class T>
void fill_row(T* to, int64_t count, int64_t first, uint64_t key, uint64_t sample,
              uint32_t drop_below, T keep) {
  int64_t element = first;
  while (element < first + count) {
    const int64_t group = element / kWords;
    const auto words = core::philox(key, sample, static_cast<uint64_t>(group));
    for (; element < std::min(first + count, (group + 1) * kWords); ++element)
      to[element - first] =
          words[static_cast<std::size_t>(element % kWords)] < drop_below ? T(0) : keep;
  }
}

}  // namespace

at::Tensor dropout_mask(const LayerImpl& layer, const Where* where, double probability,
                        at::IntArrayRef shape, int64_t first, const at::TensorOptions& options) {
  core::check(!layer.full_name().empty(),
              "dropout depends on the layer's name: call nn::initialize(model, seed) or "
              "nn::name_layers(model) first");
  core::check(where != nullptr && static_cast<int64_t>(where->sample_ids.size()) == shape[0],
              "dropout '{}' in training needs to know its samples: pass a Flow whose Where names "
              "{} of them (it names {}), or call eval()",
              layer.full_name(), shape[0], where == nullptr ? 0 : where->sample_ids.size());
  const int64_t rows = shape[0];
  at::Tensor mask = at::empty(shape, options.device(at::kCPU).requires_grad(false));
  const int64_t elems = rows == 0 ? 0 : mask.numel() / rows;
  const uint64_t key = key_of(layer, where->step);
  const auto drop_below = static_cast<uint32_t>(std::lround(std::ldexp(probability, 31)) * 2L);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, mask.scalar_type(), "dropout_mask", [&] {
        auto* to = mask.data_ptr<scalar_t>();
        const auto keep = static_cast<scalar_t>(1 / (1 - probability));
        at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            fill_row<scalar_t>(to + row * elems, elems, first, key,
                               static_cast<uint64_t>(where->sample_ids[static_cast<size_t>(row)]),
                               drop_below, keep);
        });
      });
  return mask.to(options.device());
}

DropoutImpl::DropoutImpl(double probability) : probability_(probability) {
  core::check(probability >= 0 && probability < 1, "dropout {} must be at least 0 and less than 1",
              probability);
}

at::Tensor DropoutImpl::compute(const at::Tensor& x, const Where* where) {
  if (probability_ == 0 || !is_training()) return x;
  // [rows, positions, ...]: the first position here is seq_begin of the whole sequence.
  const int64_t per_position = x.dim() > 2 ? x.stride(1) : 0;
  const int64_t first = where == nullptr ? 0 : where->seq_begin * per_position;
  return x * dropout_mask(*this, where, probability_, x.sizes(), first, x.options());
}

}  // namespace trireme::nn
