#include "trireme/data/markov.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>
#include <span>

#include "trireme/core/error.h"
#include "trireme/core/philox.h"

namespace trireme::data {

namespace {

constexpr uint64_t kTable = 0x7461626C65, kText = 0x74657874;  // two streams of one seed
// How much the next class depends on the last class, on the one before it, and on both together. A
// model learns the first from one token alone; the second needs attention, and the third must be
// memorised as a table.
constexpr double kLast = 1.6, kBefore = 1.4, kBoth = 0.7;

double uniform_of(uint32_t high, uint32_t low) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

double normal_of(uint64_t seed, uint64_t place) {
  const auto words = core::philox(seed ^ kTable, 0, place);
  return std::sqrt(-2 * std::log(1 - uniform_of(words[0], words[1]))) *
         std::cos(2 * std::numbers::pi * uniform_of(words[2], words[3]));
}

/// Samples an index from cumulative chances: the first whose running sum exceeds `u`.
int64_t draw(std::span<const double> running, double u) {
  const auto found = std::upper_bound(running.begin(), running.end(), u);
  return std::min<int64_t>(found - running.begin(), static_cast<int64_t>(running.size()) - 1);
}

}  // namespace

std::string Markov::identity() const {
  const bool usual = options_.classes == MarkovOptions().classes;
  return fmt::format("markov, {} tokens{}, seed {}, from text {}", options_.vocab,
                     usual ? "" : fmt::format(" in {} classes", options_.classes), options_.seed,
                     options_.first_text);
}

Markov::Markov(MarkovOptions options)
    : options_(options), classes_(static_cast<int>(std::min(options.classes, options.vocab))) {
  core::check(options.vocab >= 2 && options.seq >= 1 && options.samples >= 1,
              "markov: vocab {}, seq {} and samples {} must be at least 2, 1 and 1", options.vocab,
              options.seq, options.samples);
  core::check(options.classes >= 2 && options.classes <= kMostClasses,
              "markov: {} classes; there may be 2 to {}", options.classes, kMostClasses);
  const auto classes = static_cast<std::size_t>(classes_);
  const auto row_size = static_cast<std::size_t>(options.classes);
  for (std::size_t before = 0; before < classes; ++before) {
    for (std::size_t last = 0; last < classes; ++last) {
      const std::size_t row = before * row_size + last, begin = table_.size();
      for (std::size_t next = 0; next < classes; ++next) {
        const auto place = [&](uint64_t block, std::size_t at) {
          return normal_of(options.seed, (block << 32) + at * row_size + next);
        };
        table_.push_back(
            std::exp(kLast * place(0, last) + kBefore * place(1, before) + kBoth * place(2, row)));
      }
      const std::span<double> chances = std::span(table_).subspan(begin);
      const double sum = std::accumulate(chances.begin(), chances.end(), 0.0);
      for (double& chance : chances) chance /= sum;
      std::partial_sum(chances.begin(), chances.end(), std::back_inserter(running_));
    }
  }
  for (int k = 0; k < classes_; ++k) {
    auto& running = running_in_class_.emplace_back();
    double sum = 0;
    for (int64_t i = 0; i < tokens_in(k); ++i)
      running.push_back(sum += 1 / static_cast<double>(i + 1));
    for (double& upto : running) upto /= sum;
  }
  make_stationary();
  make_entropy();
}

/// The stationary distribution of (before, last), by power iteration.
void Markov::make_stationary() {
  const std::size_t used = static_cast<std::size_t>(classes_) * static_cast<std::size_t>(classes_);
  stationary_.assign(used, 1 / static_cast<double>(used));
  constexpr int kMostSteps = 10000;
  const double rounding = 1e-15 * std::max(1.0, static_cast<double>(used) / 256);
  for (int step = 0; step < kMostSteps; ++step) {
    std::vector<double> next(used);
    for (int before = 0; before < classes_; ++before) {
      for (int last = 0; last < classes_; ++last) {
        for (int k = 0; k < classes_; ++k)
          next[context(last, k)] += stationary_[context(before, last)] * chance(before, last, k);
      }
    }
    double moved = 0;
    for (std::size_t i = 0; i < next.size(); ++i) moved += std::abs(next[i] - stationary_[i]);
    stationary_ = std::move(next);
    if (moved < rounding) return;
  }
}

double Markov::chance_in_class(int64_t token) const {
  const auto& running = running_in_class_[static_cast<std::size_t>(token % classes_)];
  const auto i = static_cast<std::size_t>(token / classes_);
  return running[i] - (i == 0 ? 0 : running[i - 1]);
}

/// The entropy rate: the sum over states of p(state) x p(class | state) x (entropy of the token
/// within the class - log p(class | state)).
void Markov::make_entropy() {
  std::vector<double> within(static_cast<std::size_t>(classes_));
  for (int64_t token = 0; token < options_.vocab; ++token) {
    const double p = chance_in_class(token);
    within[static_cast<std::size_t>(token % classes_)] -= p * std::log(p);
  }
  entropy_ = 0;
  for (int before = 0; before < classes_; ++before) {
    for (int last = 0; last < classes_; ++last) {
      for (int k = 0; k < classes_; ++k) {
        const double p = chance(before, last, k);
        if (p > 0)
          entropy_ += stationary_[context(before, last)] * p *
                      (within[static_cast<std::size_t>(k)] - std::log(p));
      }
    }
  }
}

void Markov::write(int64_t index, int64_t count, int64_t* tokens) const {
  // The state before the first token is drawn from the stationary distribution.
  const auto begin = core::philox(options_.seed ^ kText, static_cast<uint64_t>(index), 0);
  double left = uniform_of(begin[0], begin[1]);
  std::size_t state = 0;
  while (state + 1 < stationary_.size() && left >= stationary_[state]) left -= stationary_[state++];
  int before = static_cast<int>(state) / classes_, last = static_cast<int>(state) % classes_;
  const auto classes = static_cast<std::size_t>(classes_);
  for (int64_t i = 0; i < count; ++i) {
    const auto words = core::philox(options_.seed ^ kText, static_cast<uint64_t>(index),
                                    static_cast<uint64_t>(i) + 1);
    const auto chances = std::span(running_).subspan(context(before, last) * classes, classes);
    const auto k = static_cast<int>(draw(chances, uniform_of(words[0], words[1])));
    const auto& in_class = running_in_class_[static_cast<std::size_t>(k)];
    tokens[i] = draw(in_class, uniform_of(words[2], words[3])) * classes_ + k;
    before = last;
    last = k;
  }
}

Sample Markov::get(int64_t index) const {
  const at::Tensor text = at::empty({options_.seq + 1}, at::kLong);
  write(options_.first_text + index, options_.seq + 1, text.data_ptr<int64_t>());
  return {text.narrow(0, 0, options_.seq), text.narrow(0, 1, options_.seq)};
}

}  // namespace trireme::data
