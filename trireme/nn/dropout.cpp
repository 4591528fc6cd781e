#include "trireme/nn/dropout.h"

#include <ATen/Dispatch.h>

#include <array>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"
#include "trireme/cuda/dropout.h"
#include "trireme/nn/parallel_loop.h"

namespace trireme::nn {

namespace {

constexpr int64_t kWords = 4;  // elements that share one call of Philox

/// The key of Philox, the random number generator, for one layer at one step.
uint64_t key_of(const LayerImpl& layer, int64_t step) {
  const std::array<uint64_t, 3> what = {layer.seed(), core::hash64(layer.full_name()),
                                        static_cast<uint64_t>(step)};
  return core::hash64(what.data(), sizeof what);
}

/// The mask of elements [first, first + count) of a sample. Philox makes four words at a time; word
/// e % 4 of block e / 4 decides whether element e is dropped.
template <class T>
void fill_mask(T* to, int64_t count, int64_t first, uint64_t key, uint64_t sample,
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

/// A word of Philox below it drops its element.
uint32_t drop_below_of(double probability) {
  return static_cast<uint32_t>(std::lround(std::ldexp(probability, 31)) * 2L);
}

void check_named(const LayerImpl& layer) {
  core::check(!layer.full_name().empty(),
              "dropout depends on the layer's name: call nn::initialize(model, seed) or "
              "nn::name_layers(model) first");
}

}  // namespace

at::Tensor dropout_mask(const LayerImpl& layer, const Where* where, double probability,
                        at::IntArrayRef shape, const DropoutElements& elements,
                        const at::TensorOptions& options) {
  check_named(layer);
  core::check(where != nullptr && static_cast<int64_t>(where->sample_ids.size()) == shape[0],
              "dropout '{}' in training needs to know its samples: pass a Flow whose Where names "
              "{} of them (it names {}), or call eval()",
              layer.full_name(), shape[0], where == nullptr ? 0 : where->sample_ids.size());
  const int64_t rows = shape[0];
  at::Tensor mask = at::empty(shape, options.requires_grad(false));
  const int64_t per_row = rows == 0 ? 0 : mask.numel() / rows;
  // A run is consecutive in the sample: the whole row, or one position's features if they are cut.
  const bool whole = elements.features.count == elements.width;
  const int64_t run = whole ? per_row : elements.features.count;
  const int64_t runs = run == 0 ? 0 : per_row / run;
  const int64_t first = elements.first_position * elements.width + elements.features.begin;
  const uint64_t key = key_of(layer, where->step);
  const uint32_t drop_below = drop_below_of(probability);
  if (mask.is_cuda() && mask.scalar_type() != at::kDouble) {
    const at::Tensor samples = at::tensor(where->sample_ids, at::kLong)
                                   .pin_memory()
                                   .to(mask.device(), /*non_blocking=*/true);
    cuda::dropout_mask(mask, samples, key,
                       {.runs = runs, .run = run, .first = first, .stride = elements.width},
                       drop_below, 1 / (1 - probability));
    return mask;
  }
  if (!mask.is_cpu()) mask = at::empty(shape, mask.options().device(at::kCPU));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, mask.scalar_type(), "dropout_mask", [&] {
        auto* to = mask.data_ptr<scalar_t>();
        const auto keep = static_cast<scalar_t>(1 / (1 - probability));
        parallel_loop(0, rows, 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            for (int64_t i = 0; i < runs; ++i)
              fill_mask<scalar_t>(
                  to + row * per_row + i * run, run, first + i * elements.width, key,
                  static_cast<uint64_t>(where->sample_ids[static_cast<std::size_t>(row)]),
                  drop_below, keep);
        });
      });
  return mask.to(options.device());
}

at::Tensor token_dropout_mask(const LayerImpl& layer, int64_t step, double probability,
                              const DroppedTokens& tokens, const at::TensorOptions& options) {
  check_named(layer);
  const at::Tensor samples = tokens.samples.contiguous(), spots = tokens.spots.contiguous();
  const int64_t rows = samples.numel(), features = tokens.features.count;
  at::Tensor mask = at::empty({rows, features}, options.requires_grad(false).device(at::kCPU));
  const uint64_t key = key_of(layer, step);
  const auto* sample_of = samples.data_ptr<int64_t>();
  const auto* spot_of = spots.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, mask.scalar_type(), "token_dropout_mask", [&] {
        auto* to = mask.data_ptr<scalar_t>();
        const auto keep = static_cast<scalar_t>(1 / (1 - probability));
        parallel_loop(0, rows, 64, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            fill_mask<scalar_t>(
                to + row * features, features, spot_of[row] * tokens.width + tokens.features.begin,
                key, static_cast<uint64_t>(sample_of[row]), drop_below_of(probability), keep);
        });
      });
  return mask.to(options.device());
}

DropoutImpl::DropoutImpl(double probability, int64_t width)
    : probability_(probability), width_(width) {
  core::check(probability >= 0 && probability < 1, "dropout {} must be at least 0 and less than 1",
              probability);
}

Layouts DropoutImpl::layouts(Style style, Sequence sequence) const {
  if (style != Style::Column) return LayerImpl::layouts(style, sequence);
  core::check(width_ > 0,
              "a Dropout that is cut by column needs to know how many features there are: "
              "nn::Dropout(probability, width)");
  return {};
}

std::optional<Cut> DropoutImpl::feature_cut() const {
  if (style() != Style::Column) return std::nullopt;
  return Cut{.axis = Axis::Tensor, .dim = -1};
}

at::Tensor DropoutImpl::compute(const at::Tensor& x, const Where* where) {
  if (probability_ == 0 || !is_training()) return x;
  // [rows, positions, features], or [rows, features].
  const int64_t features = x.dim() > 1 ? x.size(-1) : 1;
  DropoutElements elements{.width = features, .features = {0, features}};
  core::check(
      style() == Style::Column || width_ == 0 || x.dim() < 2 || features == width_,
      "dropout '{}' was given {} of its {} features; where they are cut, name it as Column in "
      "the plan",
      full_name(), features, width_);
  if (style() == Style::Column) {
    elements.width = width_;
    elements.features = even_range(width_, region()->size(), region()->group().rank());
    core::check(elements.features.count == features,
                "dropout '{}': {} features, but this rank's part of {} is {}", full_name(),
                features, width_, elements.features.count);
  }
  if (where == nullptr || x.dim() < 3)
    return x * dropout_mask(*this, where, probability_, x.sizes(), elements, x.options());
  return x * mask_of_positions(x, *where, elements);
}

/// The mask of [rows, positions, features], put together from the ranges of positions.
at::Tensor DropoutImpl::mask_of_positions(const at::Tensor& x, const Where& where,
                                          DropoutElements elements) const {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> shape = x.sizes().vec();
  for (const Range& one : where.positions.ranges(x.size(1))) {
    elements.first_position = one.begin;
    shape[1] = one.count;
    parts.push_back(dropout_mask(*this, &where, probability_, shape, elements, x.options()));
  }
  if (parts.size() == 1) return parts[0];
  return parts.empty() ? at::ones_like(x) : at::cat(parts, 1);
}

}  // namespace trireme::nn
