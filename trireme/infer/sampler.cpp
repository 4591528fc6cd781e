#include "trireme/infer/sampler.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"

namespace trireme::infer {

double Sampler::uniform(int64_t position) const {
  static const uint64_t kStream = core::hash64("trireme generate");
  const auto words = core::philox(options_.seed, kStream, static_cast<uint64_t>(position));
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t Sampler::pick(std::span<const double> logits, int64_t position) {
  core::check(!logits.empty(), "Sampler::pick: there are no tokens to choose from");
  for (const double logit : logits)
    if (std::isnan(logit))
      throw Error(fmt::format(
          "the model gives nan for the token at position {}: are its weights finite?", position));
  const auto best = std::ranges::max_element(logits);  // the first, of several
  if (!std::isfinite(*best))
    throw Error(
        fmt::format("the model gives {} for the token at position {}: too much for its "
                    "dtype? `trireme generate` takes --dtype float32",
                    *best, position));
  if (options_.temperature == 0) return best - logits.begin();
  candidates_.clear();
  double all = 0;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const double weight = std::exp((logits[token] - *best) / options_.temperature);
    all += weight;
    candidates_.push_back({weight, static_cast<int64_t>(token)});
  }
  const double kept = options_.top_p < 1 ? keep_likeliest(options_.top_p * all) : all;
  double left = uniform(position) * kept;
  for (const Candidate& one : candidates_) {
    left -= one.weight;
    if (left < 0) return one.token;
  }
  return candidates_.back().token;  // rounding
}

/// Leaves the likeliest candidates, as many as have this weight together, and returns their weight.
double Sampler::keep_likeliest(double wanted) {
  // A heap gives them one by one, and no more than are needed.
  std::make_heap(candidates_.begin(), candidates_.end());
  double kept = 0;
  auto end = candidates_.end();
  while (end != candidates_.begin() && (kept < wanted || kept == 0)) {
    std::pop_heap(candidates_.begin(), end--);
    kept += end->weight;
  }
  candidates_.erase(candidates_.begin(), end);
  std::ranges::reverse(candidates_);  // from the likeliest on
  return kept;
}

}  // namespace trireme::infer
