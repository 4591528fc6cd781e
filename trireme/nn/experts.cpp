#include "trireme/nn/experts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <array>

#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/places.h"
#include "trireme/nn/swiglu.h"

namespace trireme::nn {

ExpertsImpl::ExpertsImpl(Options options) : options_(options) {
  const auto& [width, ffn, experts, gated, dropout, in, out, overlaps] = options_;
  core::check(width > 0 && ffn > 0 && experts > 0,
              "Experts: {} experts of width {} and ffn {} are not possible", experts, width, ffn);
  core::check(dropout >= 0 && dropout < 1, "dropout {} must be at least 0 and less than 1",
              dropout);
  up = parameter(up_name(), {experts, gated ? 2 * ffn : ffn, width}, linear_rule(width, in));
  down = parameter("down", {experts, width, ffn}, linear_rule(ffn, out));
}

Layouts ExpertsImpl::layouts(Style style, Sequence sequence) const {
  if (style != Style::Expert) return LayerImpl::layouts(style, sequence);
  const auto& [width, ffn, experts, gated, dropout, in, out, overlaps] = options_;
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
  const int64_t choices = entered.tensors[2].size(-1);
  Tokens all{.x = x.reshape({-1, x.size(-1)}),
             .weights = entered.tensors[1].reshape({-1, choices}),
             .choice = entered.tensors[2].reshape({-1, choices}),
             .places = {}};
  if (options_.dropout > 0 && is_training()) {
    all.places = places_of(*this, entered).to(x.device());
    all.step = entered.where->step;
  }
  const bool in_halves = options_.overlaps && ranks() != nullptr && ranks()->size() > 1;
  const at::Tensor y = (in_halves ? mixed_in_halves(all) : mixed(all)).view(x.sizes());
  return cut != nullptr ? cut->leave(entered.with(y)) : in.with(y);
}

/// The ranks among which the experts are dealt; nullptr: this one has all.
const comm::Communicator* ExpertsImpl::ranks() const {
  return style() == Style::Expert ? cut().group(Axis::Expert) : nullptr;
}

at::Tensor ExpertsImpl::mixed(const Tokens& all) const {
  Dispatched sent = dispatch(all.x, all.choice, options_.experts, ranks());
  return sent.combine(inside(all, sent), all.weights);
}

/// Tokens of one half travel while the experts compute the other:
///
///   travel    first out   second out   first back    second back
///   compute               first        second
at::Tensor ExpertsImpl::mixed_in_halves(const Tokens& all) const {
  std::array<Tokens, 2> halves;
  std::vector<Dispatched> sent;
  for (int i = 0; i < 2; ++i) {
    const auto [begin, count] = even_range(all.x.size(0), 2, i);
    const auto half = [begin = begin, count = count](const at::Tensor& one) {
      return one.defined() ? one.narrow(0, begin, count) : one;
    };
    halves[static_cast<std::size_t>(i)] = {half(all.x), half(all.weights), half(all.choice),
                                           half(all.places), all.step};
    const Tokens& one = halves[static_cast<std::size_t>(i)];
    sent.push_back(start_dispatch(one.x, one.choice, options_.experts, ranks()));
  }
  for (std::size_t i = 0; i < 2; ++i) sent[i].start_combine(inside(halves[i], sent[i]));
  return at::cat(
      {sent[0].finish_combine(halves[0].weights), sent[1].finish_combine(halves[1].weights)});
}

at::Tensor ExpertsImpl::inside(const Tokens& all, Dispatched& sent) const {
  const at::Tensor wide = grouped_linear(sent.tokens().to(up.scalar_type()), up, sent.counts);
  at::Tensor h = options_.gated ? swiglu(wide) : gelu_tanh(wide);
  if (all.places.defined()) h = dropped_out(h, all, sent);
  return grouped_linear(h, down, sent.counts);
}

/// A token that came from another rank is still the token of its sample and position.
at::Tensor ExpertsImpl::dropped_out(const at::Tensor& h, const Tokens& all,
                                    const Dispatched& sent) const {
  const at::Tensor came = sent.send(all.places).cpu();  // [received, {sample, position}]
  Range features{0, options_.ffn};
  int64_t first_expert = 0;
  if (style() == Style::Expert) {
    features = even_range(options_.ffn, region()->size(), region()->group().rank());
    first_expert = options_.experts / ranks()->size() * ranks()->rank();
  }
  at::Tensor experts = at::empty({came.size(0)}, at::kLong);
  int64_t begin = 0;
  for (const int64_t count : sent.counts) {
    experts.narrow(0, begin, count).fill_(first_expert++);
    begin += count;
  }
  const at::Tensor spots = came.select(1, 1) * options_.experts + experts;
  return h * token_dropout_mask(*this, all.step, options_.dropout,
                                {.samples = came.select(1, 0).contiguous(),
                                 .spots = spots,
                                 .width = options_.ffn,
                                 .features = features},
                                h.options());
}

}  // namespace trireme::nn
