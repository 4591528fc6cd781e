#include "trireme/nn/router.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/autograd.h>

#include <cmath>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/nn/dispatch.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/recompute.h"

namespace trireme::nn {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr int64_t kOtherSums = 4;  // dropped, balance, z, weight

struct LossScale : torch::CustomClassHolder {
  explicit LossScale(at::Tensor of) : scale(std::move(of)) {}
  at::Tensor scale;
};

/// An identity; the loss beside it gets its gradient when that of x comes.
struct AddLossFunction : torch::autograd::Function<AddLossFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& loss, c10::intrusive_ptr<LossScale> scale) {
    context->saved_data["scale"] = c10::IValue::make_capsule(scale);
    context->saved_data["like"] = loss.detach();
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto scale =
        c10::static_intrusive_pointer_cast<LossScale>(context->saved_data["scale"].toCapsule())
            ->scale;
    const at::Tensor one = at::ones_like(context->saved_data["like"].toTensor());
    return {gradients[0], scale.defined() ? one * scale.to(one.options()) : one, {}};
  }
};

}  // namespace

at::Tensor add_loss(const at::Tensor& x, const at::Tensor& loss, const at::Tensor& scale) {
  return AddLossFunction::apply(x, loss, c10::make_intrusive<LossScale>(scale));
}

RouterImpl::RouterImpl(Options options) : options_(options) {
  const Options& o = options_;
  core::check(o.width > 0 && o.experts > 0 && o.top_k > 0,
              "Router: width {}, {} experts, top_k {} are not possible", o.width, o.experts,
              o.top_k);
  core::check(o.top_k <= o.experts, "Router: top_k {} is more than {} experts", o.top_k, o.experts);
  core::check(o.groups > 0 && o.experts % o.groups == 0,
              "Router: {} experts cannot be divided into {} groups", o.experts, o.groups);
  core::check(o.top_groups > 0 && o.top_groups <= o.groups &&
                  o.top_k <= o.experts / o.groups * o.top_groups,
              "Router: top_k {} of {} experts does not fit the best {} of {} groups", o.top_k,
              o.experts, o.top_groups, o.groups);
  weight = parameter("weight", {o.experts, o.width}, linear_rule(o.width, o.deviation));
  if (o.biased) bias = register_buffer("bias", at::zeros({o.experts}));
}

/// Other groups than the best get scores that no choice falls on.
at::Tensor RouterImpl::best_groups_only(const at::Tensor& scores) const {
  const Options& o = options_;
  if (o.top_groups == o.groups) return scores;
  std::vector<int64_t> shape = scores.sizes().vec();
  shape.back() = o.groups;
  shape.push_back(o.experts / o.groups);
  const at::Tensor grouped = scores.reshape(shape);
  const int64_t counted = o.biased ? std::min<int64_t>(2, shape.back()) : 1;
  const at::Tensor of_group = std::get<0>(grouped.topk(counted, -1)).sum(-1);
  const at::Tensor best = std::get<1>(of_group.topk(o.top_groups, -1));
  const at::Tensor taken = at::zeros_like(of_group, at::kBool).scatter(-1, best, true);
  return grouped.masked_fill(taken.logical_not().unsqueeze(-1), kNever).reshape(scores.sizes());
}

at::Tensor RouterImpl::choose(const at::Tensor& scores) const {
  const at::Tensor biased =
      bias.defined() ? scores.detach() + bias.to(scores.options()) : scores.detach();
  return std::get<1>(best_groups_only(biased).topk(options_.top_k, -1));
}

Flow RouterImpl::compute(const Flow& in) {
  const bool has_positions = in.x().dim() > 2;
  const at::Tensor x = has_positions ? in.x() : in.x().unsqueeze(1);
  const at::ScalarType dtype = at::promote_types(x.scalar_type(), at::kFloat);
  const at::Tensor logits = at::linear(x.to(dtype), weight.to(dtype));
  const at::Tensor scores =
      options_.score == Score::Softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  at::Tensor choice = choose(scores);
  at::Tensor weights = scores.gather(-1, choice);
  if (options_.normalised) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (options_.scale != 1) weights = weights * options_.scale;
  if (is_training()) {
    const at::Tensor loss = own_loss(in, logits, scores, choice);
    if (loss.defined() && at::GradMode::is_enabled() && weights.requires_grad())
      weights = add_loss(weights, loss, in.where != nullptr ? in.where->loss_scale : at::Tensor());
    if (options_.capacity > 0) choice = with_capacity(in, choice);
  }
  if (!has_positions) return {{weights.squeeze(1), choice.squeeze(1)}, in.where};
  return {{weights, choice}, in.where};
}

at::Tensor RouterImpl::sum_over_sequence(const Flow& in, at::Tensor counts) const {
  if (in.where != nullptr && in.where->cut_from && region() != nullptr)
    counts = start_all_reduce(counts, region()->group()).wait();
  const comm::Communicator* const context = cut().group(Axis::Context);
  return context != nullptr && context->size() > 1 ? start_all_reduce(counts, *context).wait()
                                                   : counts;
}

/// Does a call count in the sums of a step? Where every tensor rank has all positions, one of them
/// counts them.
bool RouterImpl::reports(const Flow& in) const {
  if (in.where == nullptr || in.where->step == 0 || is_recomputing()) return false;
  return region() == nullptr || region()->cuts_positions() || region()->group().rank() == 0;
}

/// Is this the first of the ranks that share sequences?
bool RouterImpl::is_first() const {
  const comm::Communicator* const context = cut().group(Axis::Context);
  return (region() == nullptr || region()->group().rank() == 0) &&
         (context == nullptr || context->rank() == 0);
}

void RouterImpl::count(const at::Tensor& sums) {
  const at::Tensor more = sums.detach().to(at::kDouble);
  sums_ = sums_.defined() ? sums_ + more : more;
}

/// Both losses, weighted; undefined if neither is asked for. Counts what `end_step` needs. The
/// counts are no function of the weights, so that each rank's part of the losses depends on its own
/// positions only, and the parts add up.
at::Tensor RouterImpl::own_loss(const Flow& in, const at::Tensor& logits, const at::Tensor& scores,
                                const at::Tensor& choice) {
  const Options& o = options_;
  const auto options = scores.options().requires_grad(false);
  const at::Tensor flat = choice.flatten(1);
  const at::Tensor own = at::zeros({logits.size(0), o.experts}, options)
                             .scatter_add(1, flat, at::ones_like(flat, options));
  const at::Tensor counts = sum_over_sequence(in, own.clone());
  const at::Tensor positions = (counts.sum(1) / o.top_k).clamp_min(1);
  const at::Tensor row_weights = in.where == nullptr || in.where->row_weights.empty()
                                     ? counts.sum(1) / o.top_k
                                     : at::tensor(in.where->row_weights, at::kDouble).to(options);
  const at::Tensor share = row_weights / positions;  // of one position
  const at::Tensor probabilities =
      o.score == Score::Softmax ? scores : scores / scores.sum(-1, /*keepdim=*/true);
  const double even = static_cast<double>(o.experts) / static_cast<double>(o.top_k);
  const at::Tensor used = (counts / positions.unsqueeze(1) * probabilities.sum(1)).sum(1);
  const at::Tensor balance = (used * share).sum() * even;
  const at::Tensor z = (logits.logsumexp(-1).square().sum(1) * share).sum();
  if (reports(in)) {
    const at::Tensor zero = at::zeros({}, options);
    count(at::cat({own.sum(0), at::stack({zero, balance.detach(), z.detach(),
                                          is_first() ? row_weights.sum() : zero})}));
  }
  if (o.balance == 0 && o.z_loss == 0) return {};
  return o.balance * balance + o.z_loss * z;
}

/// An expert takes the first choices of a sequence that fall on it.
at::Tensor RouterImpl::with_capacity(const Flow& in, const at::Tensor& choice) {
  const Options& o = options_;
  at::Tensor whole = choice;
  Range mine{0, choice.size(1)};
  if (in.where != nullptr && in.where->cut_from && region() != nullptr) {
    const int64_t positions = in.where->cut_from->count();
    whole = start_all_gather(choice, 1, positions, region()->group()).wait();
    mine = even_range(positions, region()->size(), region()->group().rank());
  }
  const comm::Communicator* const context = cut().group(Axis::Context);
  at::Tensor columns;  // of the sequence: those that the ranks of the tensor axis have together
  if (context != nullptr && context->size() > 1 && in.where != nullptr) {
    const Positions here =
        in.where->cut_from ? *in.where->cut_from : in.where->positions.of(whole.size(1));
    columns = at::tensor(here.each(), at::kLong).to(whole.device());
    // Each rank has other positions, so a sum puts the sequence together.
    const at::Tensor parts =
        at::zeros({whole.size(0), here.whole(), whole.size(2)}, whole.options());
    whole = start_all_reduce(parts.index_copy(1, columns, whole), *context).wait();
  }
  // With as many shares as there are experts, all tokens find room in one.
  const double shares = std::min(o.capacity, static_cast<double>(o.experts));
  const auto most = static_cast<int64_t>(shares * static_cast<double>(whole.size(1) * o.top_k) /
                                         static_cast<double>(o.experts));
  core::check(most > 0,
              "router '{}': capacity {} would drop everything: {} experts would take less than one "
              "of the {} positions of a sequence each",
              full_name(), o.capacity, o.experts, whole.size(1));
  const at::Tensor chosen =
      at::zeros({whole.size(0), whole.size(1), o.experts}, whole.options().dtype(at::kInt))
          .scatter(2, whole, 1);
  const at::Tensor place = chosen.cumsum(1).gather(2, whole);  // counted from 1
  at::Tensor kept = whole.masked_fill(place > most, kDropped);
  if (columns.defined()) kept = kept.index_select(1, columns);
  kept = kept.narrow(1, mine.begin, mine.count).contiguous();
  if (reports(in)) {
    at::Tensor sums = at::zeros({o.experts + kOtherSums}, kept.options().dtype(at::kDouble));
    sums[o.experts].copy_((kept == kDropped).sum());
    count(sums);
  }
  return kept;
}

at::Tensor RouterImpl::take_sums() {
  at::Tensor sums = std::exchange(sums_, at::Tensor());
  return sums.defined() ? sums
                        : at::zeros({options_.experts + kOtherSums},
                                    weight.options().dtype(at::kDouble).requires_grad(false));
}

void RouterImpl::end_step(const at::Tensor& sums) {
  const at::NoGradGuard guard;
  const at::Tensor tokens = sums.narrow(0, 0, options_.experts);
  if (bias.defined())
    bias.add_(at::sign(tokens.mean() - tokens).to(bias.options()), options_.bias_rate);
  const at::Tensor host = sums.cpu();
  const auto* all = host.data_ptr<double>();
  const double* others = all + options_.experts;
  const double weight_sum = others[3] > 0 ? others[3] : 1;
  load_ = ExpertLoad{.layer = full_name(),
                     .tokens = {all, others},
                     .dropped = others[0],
                     .balance = others[1] / weight_sum,
                     .z = others[2] / weight_sum};
}

std::vector<RouterImpl*> routers_of(const torch::nn::Module& root) {
  std::vector<RouterImpl*> all;
  for (const auto& one : root.modules(/*include_self=*/false))
    if (auto* router = dynamic_cast<RouterImpl*>(one.get())) all.push_back(router);
  return all;
}

void end_step_of_routers(const torch::nn::Module& root, const comm::Communicator& ranks) {
  const auto routers = routers_of(root);
  if (routers.empty()) return;
  std::vector<at::Tensor> parts;
  for (RouterImpl* router : routers) parts.push_back(router->take_sums());
  at::Tensor all = at::cat(parts);
  if (ranks.size() > 1) ranks.all_reduce(all).wait();
  int64_t begin = 0;
  for (std::size_t i = 0; i < routers.size(); ++i) {
    routers[i]->end_step(all.narrow(0, begin, parts[i].size(0)));
    begin += parts[i].size(0);
  }
}

}  // namespace trireme::nn
