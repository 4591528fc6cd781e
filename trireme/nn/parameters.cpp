#include "trireme/nn/parameters.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/parallel_loop.h"

namespace trireme::nn {

namespace {

constexpr double kTwoToMinus53 = 0x1p-53;

double uniform_of(uint32_t high, uint32_t low) {  // in [0, 1)
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * kTwoToMinus53;
}

/// The initial values of elements 2k and 2k + 1 of a parameter: two uniform numbers, made normal by
/// Box-Muller if the rule wants that.
std::array<double, 2> pair_of(const InitRule& rule, uint64_t seed, uint64_t name, int64_t k) {
  if (rule.kind == InitRule::Kind::Constant) return {rule.scale, rule.scale};
  const auto words = core::philox(seed, name, static_cast<uint64_t>(k));
  const double u = uniform_of(words[0], words[1]), v = uniform_of(words[2], words[3]);
  if (rule.kind == InitRule::Kind::Uniform)
    return {(2 * u - 1) * rule.scale, (2 * v - 1) * rule.scale};
  const double radius = rule.scale * std::sqrt(-2 * std::log(1 - u));
  const double angle = 2 * std::numbers::pi * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// The initial values of elements [first, first + count) of the whole parameter.
void fill_run(double* to, int64_t first, int64_t count, const InitRule& rule, uint64_t seed,
              uint64_t name) {
  for (int64_t i = first; i < first + count;) {
    const auto two = pair_of(rule, seed, name, i / 2);
    if (i % 2 == 0) to[i++ - first] = two[0];
    if (i % 2 == 1 && i < first + count) to[i++ - first] = two[1];
  }
}

/// Calls `fill(at, first, length)` for elements [begin, begin + count) of a box, row by row, from
/// several threads: the elements from `at` on are the elements from `first` on of the whole. A row
/// is the longest run of elements of the box that is consecutive in the whole, too: the last dims,
/// as many as the box covers completely, and the dim before them.
///
///   whole [4, 6]    . . . . . .
///                   . . r r r .    box [2, 3] at (1, 2): two rows of 3, which start at elements
///                   . . r r r .    8 and 14 of the whole
///                   . . . . . .
template <class Fill>
void for_each_row(const Box& box, int64_t begin, int64_t count, const std::vector<int64_t>& whole,
                  const Fill& fill) {
  if (count == 0) return;
  std::size_t split = whole.size();  // dims from here on form a row
  int64_t run = 1;
  while (split > 0 && (split == whole.size() || box.shape[split] == whole[split]))
    run *= box.shape[--split];
  std::vector<int64_t> strides(whole.size(), 1);
  for (std::size_t d = whole.size(); d-- > 1;) strides[d - 1] = strides[d] * whole[d];
  const auto fill_row = [&](int64_t row) {
    int64_t rest = row, first = 0;
    for (std::size_t d = whole.size(); d-- > split;) first += box.offset[d] * strides[d];
    for (std::size_t d = split; d-- > 0;) {
      first += (box.offset[d] + rest % box.shape[d]) * strides[d];
      rest /= box.shape[d];
    }
    const int64_t from = std::max(begin, row * run),
                  until = std::min(begin + count, (row + 1) * run);
    fill(from - begin, first + (from - row * run), until - from);
  };
  parallel_loop(begin / run, (begin + count - 1) / run + 1, 4096 / run + 1,
                [&](int64_t first, int64_t last) {
                  for (int64_t row = first; row < last; ++row) fill_row(row);
                });
}

/// The initial values of elements [begin, begin + count) of a box.
at::Tensor values_of(const Box& box, int64_t begin, int64_t count,
                     const std::vector<int64_t>& whole, const InitRule& rule, uint64_t seed,
                     uint64_t name) {
  at::Tensor values = at::empty({count}, at::kDouble);
  double* to = values.data_ptr<double>();
  for_each_row(box, begin, count, whole, [&](int64_t at, int64_t first, int64_t length) {
    fill_run(to + at, first, length, rule, seed, name);
  });
  return values;
}

}  // namespace

at::Tensor box_of(const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor.detach();
  for (std::size_t d = 0; d < box.offset.size(); ++d)
    part = part.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
  return part;
}

at::Tensor part_of(const at::Tensor& tensor, const LocalBox& held) {
  return box_of(tensor, {held.at, held.box.shape});
}

void fill(const Parameter& parameter) {
  const at::NoGradGuard guard;
  const uint64_t name = core::hash64(parameter.name);
  for (const LocalBox& held : parameter.layout.local_boxes(parameter.coord, parameter.degrees))
    part_of(parameter.tensor, held)
        .copy_(values_of(held.box, 0, held.box.numel(), parameter.layout.whole(), *parameter.init,
                         parameter.seed, name)
                   .view(held.box.shape));
}

std::vector<Parameter> parameters_of(const torch::nn::Module& root) {
  using Modules = std::vector<std::pair<std::string, const torch::nn::Module*>>;
  Modules modules = {{"", &root}};
  const auto below = root.named_modules("", /*include_self=*/false);
  for (const auto& item : below) modules.emplace_back(item.key() + ".", item.value().get());
  // A tied weight may be registered by another layer before the one that declares it.
  std::map<const void*, std::pair<const DeclaredParameter*, uint64_t>> declared;
  for (const auto& [prefix, module] : modules) {
    const auto* layer = dynamic_cast<const LayerImpl*>(module);
    if (layer == nullptr) continue;
    for (const auto& item : module->named_parameters(/*recurse=*/false))
      if (const auto* own = layer->declared().find(item.key()))
        declared[item.value().unsafeGetTensorImpl()] = {own, layer->seed()};
  }
  std::vector<Parameter> found;
  std::set<const void*> seen;
  for (const auto& [prefix, module] : modules) {
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      const void* const who = item.value().unsafeGetTensorImpl();
      if (!seen.insert(who).second) continue;
      const auto* layer = dynamic_cast<const LayerImpl*>(module);
      if (const auto* tied = layer != nullptr ? layer->declared().tied_to(item.key()) : nullptr) {
        found.push_back(*tied);
        continue;
      }
      Parameter one{prefix + item.key(), item.value(), Layout(item.value().sizes().vec()),
                    std::nullopt};
      if (const auto known = declared.find(who); known != declared.end()) {
        const auto& [own, seed] = known->second;
        one.layout = own->layout;
        one.init = own->init;
        one.coord = own->coord;
        one.degrees = own->degrees;
        one.seed = seed;
      }
      found.push_back(std::move(one));
    }
  }
  return found;
}

void initialize(torch::nn::Module& root, uint64_t seed) {
  name_layers(root);
  root.apply([seed](torch::nn::Module& module) {
    if (auto* layer = dynamic_cast<LayerImpl*>(&module)) layer->declared().set_seed(seed);
  });
  for (const Parameter& parameter : parameters_of(root))
    if (parameter.init && is_bound(parameter.tensor)) fill(parameter);
}

void fill_piece(const Parameter& parameter, const Piece& piece, const at::Tensor& to) {
  constexpr int64_t kAtATime = 1 << 20;  // in double, then rounded
  const at::NoGradGuard guard;
  const uint64_t name = core::hash64(parameter.name);
  for (int64_t done = 0; done < piece.count; done += kAtATime) {
    const int64_t count = std::min(kAtATime, piece.count - done);
    to.narrow(0, done, count)
        .copy_(values_of({piece.offset, piece.shape}, piece.begin + done, count, piece.whole,
                         *parameter.init, parameter.seed, name));
  }
}

/// Philox makes four words of 32 bits at a time, which are eight numbers: number e % 8 of block
/// e / 8 is that of element e.
at::Tensor random_bits(const Parameter& parameter, const Piece& piece, int64_t step) {
  constexpr int64_t kNumbers = 8;
  const std::array<uint64_t, 3> what = {parameter.seed, core::hash64(parameter.name),
                                        static_cast<uint64_t>(step)};
  const uint64_t key = core::hash64(what.data(), sizeof what);
  at::Tensor bits = at::empty({piece.count}, at::kShort);
  auto* to = bits.data_ptr<int16_t>();
  for_each_row({piece.offset, piece.shape}, piece.begin, piece.count, piece.whole,
               [&](int64_t at, int64_t first, int64_t length) {
                 for (int64_t element = first; element < first + length;) {
                   const int64_t block = element / kNumbers;
                   const auto words = core::philox(key, ~uint64_t{0}, static_cast<uint64_t>(block));
                   const int64_t end = std::min(first + length, (block + 1) * kNumbers);
                   for (; element < end; ++element) {
                     const uint32_t word = words[static_cast<std::size_t>(element % kNumbers / 2)];
                     to[at + element - first] =
                         static_cast<int16_t>(element % 2 == 0 ? word & 0xffff : word >> 16);
                   }
                 }
               });
  return bits;
}

}  // namespace trireme::nn
