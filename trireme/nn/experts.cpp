#include "trireme/nn/experts.h"

#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/positions.h"
#include "trireme/nn/swiglu.h"

namespace trireme::nn {

ExpertsImpl::ExpertsImpl(Options options) : options_(options) {
  const auto& [width, ffn, experts, gated, dropout, in, out] = options_;
  core::check(width > 0 && ffn > 0 && experts > 0,
              "Experts: {} experts of width {} and ffn {} are not possible", experts, width, ffn);
  core::check(dropout >= 0 && dropout < 1, "dropout {} must be at least 0 and less than 1",
              dropout);
  up = parameter(up_name(), {experts, gated ? 2 * ffn : ffn, width}, linear_rule(width, in));
  down = parameter("down", {experts, width, ffn}, linear_rule(ffn, out));
}

Layouts ExpertsImpl::layouts(Style style, Sequence sequence) const {
  if (style != Style::Expert) return LayerImpl::layouts(style, sequence);
  const auto& [width, ffn, experts, gated, dropout, in, out] = options_;
  std::vector<Section> halves;
  if (gated) halves = {{.size = ffn}, {.size = ffn}};
  return {{up_name(), Layout({experts, gated ? 2 * ffn : ffn, width},
                             {{Axis::Expert, 0}, {Axis::Tensor, 1, halves}})},
          {"down", Layout({experts, width, ffn}, {{Axis::Expert, 0}, {Axis::Tensor, 2}})}};
}

Flow ExpertsImpl::compute(const Flow& in) {
  core::check(in.tensors.size() == 3,
              "experts '{}' take {{x, weights, choice}}, and were given {} tensors", full_name(),
              in.tensors.size());
  const TensorRegion* const cut = style() == Style::Expert ? region().get() : nullptr;
  Flow entered = in;
  if (cut != nullptr) {
    const int64_t positions = cut->positions(in);
    entered = {{cut->enter(in.x(), positions), cut->enter(in.tensors[1], positions),
                cut->start_enter(in.tensors[2], positions).wait()},
               cut->entered(in)};
  }
  const at::Tensor& x = entered.x();
  const at::Tensor& choice = entered.tensors[2];
  const int64_t choices = choice.size(-1);
  const Dispatched sent =
      dispatch(x.reshape({-1, x.size(-1)}), choice.reshape({-1, choices}), options_.experts,
               cut != nullptr ? this->cut().group(Axis::Expert) : nullptr);
  const at::Tensor y =
      sent.combine(inside(entered, sent), entered.tensors[1].reshape({-1, choices}))
          .view(x.sizes());
  return cut != nullptr ? cut->leave(entered.with(y)) : in.with(y);
}

at::Tensor ExpertsImpl::inside(const Flow& entered, const Dispatched& sent) const {
  const at::Tensor wide = grouped_linear(sent.tokens.to(up.scalar_type()), up, sent.counts);
  at::Tensor h = options_.gated ? swiglu(wide) : gelu_tanh(wide);
  if (options_.dropout > 0 && is_training()) h = dropped_out(h, entered, sent);
  return grouped_linear(h, down, sent.counts);
}

/// A token that came from another rank is still the token of its sample and position.
at::Tensor ExpertsImpl::dropped_out(const at::Tensor& h, const Flow& entered,
                                    const Dispatched& sent) const {
  const at::Tensor places = places_of(*this, entered);  // [tokens, {sample, position}]
  const at::Tensor came = sent.send(places.to(h.device())).cpu();
  Range features{0, options_.ffn};
  int64_t first_expert = 0;
  if (style() == Style::Expert) {
    features = even_range(options_.ffn, region()->size(), region()->group().rank());
    const comm::Communicator& ranks = *cut().group(Axis::Expert);
    first_expert = options_.experts / ranks.size() * ranks.rank();
  }
  at::Tensor experts = at::empty({came.size(0)}, at::kLong);
  int64_t begin = 0;
  for (const int64_t count : sent.counts) {
    experts.narrow(0, begin, count).fill_(first_expert++);
    begin += count;
  }
  const at::Tensor spots = came.select(1, 1) * options_.experts + experts;
  return h * token_dropout_mask(*this, entered.where->step, options_.dropout,
                                {.samples = came.select(1, 0).contiguous(),
                                 .spots = spots,
                                 .width = options_.ffn,
                                 .features = features},
                                h.options());
}

}  // namespace trireme::nn
