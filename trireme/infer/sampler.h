#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::infer {

struct SamplerOptions {
  double temperature = 1;  ///< 0: the likeliest token, always
  double top_p = 1;        ///< draw from the likeliest tokens that have this probability together
  uint64_t seed = 1;
};

/// Draws tokens. Token t of a text is a function of its logits and of (seed, t): the same on every
/// mesh, up to the rounding of the logits.
///
///   likelihoods, sorted     | .41 | .22 | .13 | .08 | ...          top_p 0.7: the first three
///   u in [0, 1) x (their sum) falls into one of them               u = philox(seed, t)
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  /// Of equally likely tokens the first comes first. Throws Error if a logit is not a number.
  int64_t pick(std::span<const double> logits, int64_t position);

  /// The random number of a position, in [0, 1).
  double uniform(int64_t position) const;

 private:
  struct Candidate {
    double weight;
    int64_t token;
    /// Is it less likely? Of two that are equally likely the later is.
    bool operator<(const Candidate& other) const {
      return weight != other.weight ? weight < other.weight : token > other.token;
    }
  };

  double keep_likeliest(double wanted);

  SamplerOptions options_;
  std::vector<Candidate> candidates_;  // kept between calls, for their memory
};

}  // namespace trireme::infer
