#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/comm/dtype.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"
#include "trireme/parallel/compressed_sum.h"

namespace trireme::parallel {

namespace {

/// Standard normal numbers: a function of the seed, the name and the element (Box-Muller).
at::Tensor normal(int64_t rows, int64_t columns, uint64_t seed, uint64_t stream) {
  at::Tensor all = at::empty({rows, columns}, at::kDouble);
  auto* to = all.data_ptr<double>();
  for (int64_t i = 0; i < all.numel(); ++i) {
    const auto words = core::philox(seed, stream, static_cast<uint64_t>(i));
    constexpr double kUnit = 0x1p-32;
    const double u = (words[0] + 0.5) * kUnit, v = words[1] * kUnit;
    to[i] = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }
  return all;
}

}  // namespace

std::pair<int64_t, int64_t> matrix_of(const GradientPlace& place) {
  const int64_t rows = place.shape.empty() ? 1 : place.shape.front();
  return {rows, rows == 0 ? 0 : place.numel() / rows};
}

bool LowRankFactors::fits(const GradientPlace& place) const {
  if (place.shape.size() < 2 || place.shard) return false;
  const auto [rows, columns] = matrix_of(place);
  const auto factors = static_cast<double>(rank_of(place) * (rows + columns));
  return min_saving_ * factors < static_cast<double>(rows * columns);
}

int64_t LowRankFactors::rank_of(const GradientPlace& place) const {
  const auto [rows, columns] = matrix_of(place);
  return std::min({rank_, rows, columns});
}

void LowRankFactors::add(const GradientPlacePtr& place) {
  const auto [found, is_new] = factors_.try_emplace(place->key());
  if (!is_new) return;
  found->second.place = place;
  found->second.now = normal(matrix_of(*place).second, rank_of(*place), seed_,
                             core::hash64("powersgd/" + place->name))
                          .to(comm::scalar_type_of(place->dtype));
}

at::Tensor LowRankFactors::now(const GradientPlace& place) const {
  const Factor& one = factors_.at(place.key());
  return one.next.defined() ? one.next : one.now;
}

void LowRankFactors::set_next(const GradientPlace& place, at::Tensor next) {
  Factor& one = factors_.at(place.key());
  // A column of zeros would stay one for ever.
  const at::Tensor good = next.square().sum(0, /*keepdim=*/true) > 0;
  one.next = at::where(good, next, now(place));
}

void LowRankFactors::settle() {
  for (auto& [key, one] : factors_)
    if (one.next.defined()) {
      one.now.copy_(one.next);
      one.next = at::Tensor();
    }
}

void LowRankFactors::undo_step() {
  for (auto& [key, one] : factors_) one.next = at::Tensor();
}

std::vector<ReducerState> LowRankFactors::states() const {
  std::vector<ReducerState> all;
  for (const auto& [key, one] : factors_)
    all.push_back({.kind = "factor", .parameter = key, .tensor = one.now});
  return all;
}

}  // namespace trireme::parallel
