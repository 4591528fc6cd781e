#include "trireme/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme::data {

namespace {

/// Whole numbers in the ratio of the weights. Weights of up to 9 decimals are taken exactly: 0.7
/// and 0.1 are 7 and 1. Others are rounded to 40 bits.
std::vector<uint64_t> whole_weights(const std::vector<double>& weights) {
  constexpr double kMost = 0x1p40;
  const double largest = *std::ranges::max_element(weights);
  double scale = 1;
  for (int decimals = 0; decimals <= 9 && largest * scale <= kMost; ++decimals, scale *= 10) {
    const auto is_whole = [&](double w) { return std::round(w * scale) / scale == w; };
    if (!std::ranges::all_of(weights, is_whole)) continue;
    std::vector<uint64_t> whole;
    for (const double w : weights) whole.push_back(static_cast<uint64_t>(std::round(w * scale)));
    return whole;
  }
  std::vector<uint64_t> rounded;
  for (const double w : weights)
    rounded.push_back(std::max<uint64_t>(1, static_cast<uint64_t>(w / largest * kMost)));
  return rounded;
}

}  // namespace

BlendRule::BlendRule(const std::vector<double>& weights) : sources_(weights.size()) {
  core::check(!weights.empty(), "a blend needs at least one source");
  for (const double weight : weights)
    core::check(std::isfinite(weight) && weight > 0, "the weight {} of a blend is not over 0",
                weight);
  for (const uint64_t weight : whole_weights(weights)) nodes_.push_back({.weight = weight});
  std::vector<std::size_t> free(sources_);
  std::iota(free.begin(), free.end(), std::size_t{0});
  while (free.size() > 1) {  // the order of equal ones is that of the list
    std::ranges::stable_sort(free, std::greater(), [&](std::size_t i) { return nodes_[i].weight; });
    const std::size_t lightest = free.back(), next = free[free.size() - 2];
    free.resize(free.size() - 2);
    free.push_back(nodes_.size());
    nodes_.push_back({nodes_[lightest].weight + nodes_[next].weight, next, lightest});
  }
}

int64_t BlendRule::left_of(const Node& pair, int64_t count) const {
  using Wide = unsigned __int128;
  const Wide doubled = Wide{2} * static_cast<uint64_t>(count) * nodes_[pair.left].weight;
  return static_cast<int64_t>((doubled + pair.weight) / (Wide{2} * pair.weight));
}

BlendRule::Turn BlendRule::turn_at(int64_t position) const {
  std::size_t node = nodes_.size() - 1;
  while (!is_source(node)) {
    const Node& pair = nodes_[node];
    const int64_t before = left_of(pair, position);
    const bool is_left = left_of(pair, position + 1) > before;
    node = is_left ? pair.left : pair.right;
    position = is_left ? before : position - before;
  }
  return {node, position};
}

std::vector<int64_t> BlendRule::uses(int64_t count) const {
  std::vector<int64_t> counts(nodes_.size());
  counts.back() = count;
  for (std::size_t node = nodes_.size(); node-- > sources_;) {
    const Node& pair = nodes_[node];
    counts[pair.left] = left_of(pair, counts[node]);
    counts[pair.right] = counts[node] - counts[pair.left];
  }
  counts.resize(sources_);
  return counts;
}

namespace {

std::vector<double> weights_of(const std::vector<Blend::Source>& sources) {
  std::vector<double> weights;
  for (const Blend::Source& source : sources) weights.push_back(source.weight);
  return weights;
}

}  // namespace

Blend::Blend(std::vector<Source> sources, uint64_t seed)
    : sources_(std::move(sources)), rule_(weights_of(sources_)) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // the same file twice: two orders
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    orders_.emplace_back(seed + i * kGolden, *sources_[i].data, /*global_batch=*/1);
    size_ += sources_[i].data->size();
  }
}

Blend::Place Blend::place_of(int64_t index, int64_t epoch) const {
  const auto [source, use] = rule_.turn_at(epoch * size_ + index);
  const int64_t size = sources_[source].data->size(), round = use / size;
  return {source, orders_[source].sample_at(round, use % size), round};
}

Sample Blend::get_in_epoch(int64_t index, int64_t epoch) const {
  const Place place = place_of(index, epoch);
  return sources_[place.source].data->get_in_epoch(place.index, place.epoch);
}

Sample Blend::get_positions(int64_t index, std::optional<int64_t> epoch,
                            const Positions& positions) const {
  const Place place = place_of(index, epoch.value_or(0));
  return sources_[place.source].data->get_positions(place.index, place.epoch, positions);
}

std::string Blend::identity() const {
  std::string all;
  for (const Source& source : sources_)
    all +=
        fmt::format("{}{} x ({})", all.empty() ? "" : ", ", source.weight, source.data->identity());
  return all;
}

std::optional<double> Blend::floor() const {
  double sum = 0, weights = 0;
  for (const Source& source : sources_) {
    const auto floor = source.data->floor();
    if (!floor) return {};
    sum += source.weight * *floor;
    weights += source.weight;
  }
  return sum / weights;
}

}  // namespace trireme::data
