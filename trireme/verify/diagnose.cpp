// What a mistake looks like in the numbers. Each kind is a formula that the wrong values satisfy.
#include <fmt/format.h>

#include <torch/nn/module.h>

#include <cmath>

#include "trireme/layout/rank_set.h"
#include "trireme/nn/parameters.h"
#include "trireme/verify/compare.h"

namespace trireme::verify {

namespace {

/// A rank's part and what it should be, both flat, in the same order.
struct Pair {
  int rank;
  at::Tensor got, wanted;
};

class Case {
 public:
  Case(const ComparedTensor& tensor, const DiagnosisContext& context)
      : tensor_(tensor), context_(context) {
    for (const ComparedTensor::RankPart& part : tensor.parts) {
      all_.push_back({part.rank, flat(part, part.value), flat_of(tensor.alone, part.boxes)});
      if (!is_close(all_.back().got, all_.back().wanted)) wrong_.push_back(all_.back());
    }
    close_everywhere_ = wrong_.empty();
    for (const Pair& pair : all_)
      if (close_everywhere_ && pair.rank == tensor.worst_rank) wrong_.push_back(pair);
  }

  Diagnosis diagnose() const {
    if (tensor_.role == TensorRole::Input) return data();
    if (close_everywhere_ && !std::isfinite(tensor_.difference))
      return {MistakeKind::Missing, "the ranks together do not have all of it"};
    if (close_everywhere_) {
      const Diagnosis late = stale();
      return late.kind != MistakeKind::None
                 ? late
                 : Diagnosis{MistakeKind::Unknown,
                             "every element is close, but the error of all of them is too large"};
    }
    for (const auto& look : {&Case::stale, &Case::factor, &Case::bias, &Case::partial, &Case::extra,
                             &Case::dropout, &Case::permutation})
      if (Diagnosis found = (this->*look)(); found.kind != MistakeKind::None) return found;
    return {MistakeKind::Unknown, "no known shape of error"};
  }

 private:
  static at::Tensor flat(const ComparedTensor::RankPart& part, const at::Tensor& value) {
    std::vector<at::Tensor> boxes = {at::empty({0}, at::kDouble)};
    for (const LocalBox& held : part.boxes) boxes.push_back(nn::part_of(value, held).reshape({-1}));
    return at::cat(boxes);
  }
  static at::Tensor flat_of(const at::Tensor& whole, const std::vector<LocalBox>& held) {
    std::vector<at::Tensor> boxes = {at::empty({0}, at::kDouble)};
    for (const LocalBox& one : held) boxes.push_back(nn::box_of(whole, one.box).reshape({-1}));
    return at::cat(boxes);
  }

  /// Equal within the tolerance, measured by the tensor's own scale.
  bool is_close(const at::Tensor& a, const at::Tensor& b) const {
    if (a.sizes() != b.sizes()) return false;
    return a.numel() == 0 ||
           (a - b).abs().max().item<double>() <= context_.tolerance * tensor_.scale;
  }
  template <class Test>
  bool all_wrong(const Test& test) const {
    return !wrong_.empty() && std::all_of(wrong_.begin(), wrong_.end(), test);
  }
  std::string ranks() const {
    if (wrong_.size() == all_.size()) return all_.size() == 1 ? "the rank" : "every rank";
    std::string text = wrong_.size() == 1 ? "rank" : "ranks";
    for (const Pair& pair : wrong_) text += fmt::format(" {}", pair.rank);
    return text;
  }
  at::Tensor assembled() const {
    at::Tensor whole = at::zeros_like(tensor_.alone);
    for (const ComparedTensor::RankPart& part : tensor_.parts)
      for (const LocalBox& held : part.boxes)
        nn::box_of(whole, held.box).copy_(nn::part_of(part.value, held));
    return whole;
  }

  Diagnosis data() const {
    if (Diagnosis order = permutation(); order.kind != MistakeKind::None) return order;
    return {MistakeKind::Data,
            fmt::format("{} read other samples than those of its place in the batch", ranks())};
  }

  Diagnosis stale() const {
    if (!context_.before.defined()) return {MistakeKind::None, ""};
    for (const ComparedTensor::RankPart& part : tensor_.parts) {
      const bool is_wrong = std::any_of(wrong_.begin(), wrong_.end(),
                                        [&](const Pair& pair) { return pair.rank == part.rank; });
      if (is_wrong && !is_close(flat(part, part.value), flat_of(context_.before, part.boxes)))
        return {MistakeKind::None, ""};
    }
    return {MistakeKind::Stale,
            fmt::format("the value on {} is still that of one step before", ranks())};
  }

  Diagnosis factor() const {
    double top = 0, bottom = 0;
    for (const Pair& pair : wrong_) {
      top += (pair.got * pair.wanted).sum().item<double>();
      bottom += (pair.wanted * pair.wanted).sum().item<double>();
    }
    if (bottom == 0) return {MistakeKind::None, ""};
    const double found = top / bottom;
    if (found == 0 ||
        !all_wrong([&](const Pair& pair) { return is_close(pair.got, pair.wanted * found); }))
      return {MistakeKind::None, ""};
    const double times = found > 1 ? found : 1 / found;
    if (std::abs(times - std::round(times)) > std::max(1e-6, context_.tolerance) * times)
      return {MistakeKind::Factor, fmt::format("it is {:.6g} times what it should be", found)};
    return {MistakeKind::Factor,
            fmt::format(
                "it is {} times what it should be: {}",
                found > 1 ? fmt::format("{:.0f}", times) : fmt::format("1/{:.0f}", times),
                found > 1 ? "a missing average, or a sum made twice" : "averaged once too often")};
  }

  /// A bias that every rank adds before the sum.
  Diagnosis bias() const {
    if (!context_.bias.defined() || tensor_.role != TensorRole::Output)
      return {MistakeKind::None, ""};
    const at::Tensor error = assembled() - tensor_.alone;
    const at::Tensor one = context_.bias.expand_as(error);
    const double squares = (one * one).sum().item<double>();
    const double extra = squares == 0 ? 0 : (error * one).sum().item<double>() / squares;
    if (std::abs(extra) < 0.5 || !is_close(error, one * std::round(extra)))
      return {MistakeKind::None, ""};
    return {MistakeKind::Factor,
            fmt::format("its bias is counted {:.0f} times instead of once: add it "
                        "after the sum over the ranks, not before",
                        std::round(extra) + 1)};
  }

  /// The ranks that differ from `rank` only along these axes.
  std::vector<const Pair*> along(int rank, const std::vector<Axis>& axes) const {
    std::vector<const Pair*> group;
    const Coord mine = coord_of(rank, context_.degrees);
    for (const Pair& pair : all_)
      if (contains({.axes = axes}, mine, coord_of(pair.rank, context_.degrees), context_.degrees))
        group.push_back(&pair);
    return group;
  }

  /// `what` of the pairs of each wrong rank's group add up to `to` of the rank itself.
  Diagnosis sums(at::Tensor Pair::*what, at::Tensor Pair::*to, MistakeKind kind,
                 const char* says) const {
    for (const std::vector<Axis>& axes : axis_sets(context_.degrees)) {
      std::string names;
      for (const Axis axis : axes)
        names += fmt::format("{}{}", names.empty() ? "" : " and ", trireme::to_string(axis));
      const bool adds_up = all_wrong([&](const Pair& pair) {
        at::Tensor sum = at::zeros_like(pair.got);
        for (const Pair* other : along(pair.rank, axes)) {
          if (((*other).*what).sizes() != sum.sizes()) return false;
          sum += (*other).*what;
        }
        return is_close(sum, pair.*to);
      });
      if (adds_up) return {kind, fmt::format(fmt::runtime(says), names)};
    }
    return {MistakeKind::None, ""};
  }

  Diagnosis partial() const {
    return sums(&Pair::got, &Pair::wanted, MistakeKind::Partial,
                "each rank has a part of the sum: the reduction over {} is missing");
  }

  Diagnosis extra() const {
    return sums(&Pair::wanted, &Pair::got, MistakeKind::Extra,
                "each rank has the sum of what the ranks should have: it is cut over {}, and must "
                "not be reduced there");
  }

  Diagnosis permutation() const {
    const at::Tensor got = assembled();
    const at::Tensor a = std::get<0>(got.reshape({-1}).sort());
    const at::Tensor b = std::get<0>(tensor_.alone.reshape({-1}).sort());
    constexpr double kMoved = 1e-6;  // less is rounding, and sorted values hide it
    if (a.numel() < 2 || tensor_.difference < kMoved || !is_close(a, b))
      return {MistakeKind::None, ""};
    return {MistakeKind::Permutation,
            "the right numbers in the wrong places: parts are put together in another order than "
            "they were cut"};
  }

  Diagnosis dropout() const {
    if (tensor_.role != TensorRole::Output) return {MistakeKind::None, ""};
    int64_t only_zeros = 0;
    for (const Pair& pair : wrong_) {
      const at::Tensor differ = (pair.got - pair.wanted).abs() > context_.tolerance * tensor_.scale;
      const at::Tensor zero = at::logical_or(pair.got == 0, pair.wanted == 0);
      if (at::logical_and(differ, zero.logical_not()).any().item<bool>())
        return {MistakeKind::None, ""};
      only_zeros += differ.sum().item<int64_t>();
    }
    if (only_zeros == 0) return {MistakeKind::None, ""};
    return {MistakeKind::Dropout,
            fmt::format("{} dropped other elements: the mask must depend on step, "
                        "sample and element only",
                        ranks())};
  }

  const ComparedTensor& tensor_;
  const DiagnosisContext& context_;
  std::vector<Pair> all_, wrong_;
  bool close_everywhere_ = false;  // then `wrong_` is the rank with the largest error
};

}  // namespace

Diagnosis diagnose(const ComparedTensor& tensor, const DiagnosisContext& context) {
  std::size_t without = 0;
  for (const ComparedTensor::RankPart& part : tensor.parts) {
    if (!part.value.defined()) ++without;
    if (!part.fits)
      return {MistakeKind::Shape,
              fmt::format("what rank {} has is not of the shape that its layout says", part.rank)};
  }
  if (tensor.role == TensorRole::Buffer && context.degrees.data() > 1)
    return {MistakeKind::Unknown,
            "the ranks see other samples each, and the first one's buffers are everybody's: they "
            "can be those of one rank only where no buffer depends on samples"};
  if (!tensor.alone.defined())
    return {MistakeKind::Unknown, "one rank has no gradient for it, the mesh has one"};
  if (without > 0)
    return {
        MistakeKind::Missing,
        fmt::format("{} of {} ranks have no gradient for it: something on the way is not seen by "
                    "autograd",
                    without, tensor.parts.size())};
  if (tensor.role == TensorRole::Gradient &&
      std::all_of(tensor.parts.begin(), tensor.parts.end(),
                  [](const ComparedTensor::RankPart& part) {
                    return part.value.abs().max().item<double>() == 0;
                  }))
    return {MistakeKind::Missing,
            "its gradient is 0 on every rank: something on the way is not seen by autograd"};
  return Case(tensor, context).diagnose();
}

}  // namespace trireme::verify
