// The convergence theorems of the papers, executed: on a strongly convex quadratic whose constants
// are known, each method's error must stay under its bound, and depend on workers, delay and steps
// between meetings as the theorem says. docs/convergence.md has the statements and the table, which
// bench/convergence prints from the lines that these tests write to $TRIREME_CONVERGENCE.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <numbers>
#include <random>
#include <vector>

#include "trireme/compress/factory.h"
#include "trireme/core/env.h"
#include "trireme/core/json.h"
#include "trireme/parallel/outer_optimizer.h"

namespace trireme::test {
namespace {

constexpr int kDim = 32, kTrials = 20;
constexpr double kMu = 0.1, kL = 1, kSigma2 = 1;  // strong convexity, smoothness, E|noise|^2

/// f(x) = 1/2 sum_i a_i (x_i - 1)^2 with a_i from mu to L; gradients come with normal noise.
class Quadratic {
 public:
  Quadratic() : a_(kDim) {
    for (int i = 0; i < kDim; ++i)
      a_[static_cast<std::size_t>(i)] = kMu * std::pow(kL / kMu, i / (kDim - 1.0));
  }
  double loss(const std::vector<double>& x) const {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += a_[i] * (x[i] - 1) * (x[i] - 1) / 2;
    return sum;
  }
  std::vector<double> gradient(const std::vector<double>& x, std::mt19937_64& random) const {
    std::normal_distribution<double> noise(0, std::sqrt(kSigma2 / kDim));
    std::vector<double> g(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) g[i] = a_[i] * (x[i] - 1) + noise(random);
    return g;
  }
  static double distance2(const std::vector<double>& x) {
    double sum = 0;
    for (const double one : x) sum += (one - 1) * (one - 1);
    return sum;
  }

 private:
  std::vector<double> a_;
};

const std::vector<double> kStart(kDim, 0.0);
const double kR2 = Quadratic::distance2(kStart);  // |x_0 - x*|^2

double squared(const std::vector<double>& v) {
  double sum = 0;
  for (const double one : v) sum += one * one;
  return sum;
}

void step(std::vector<double>& x, const std::vector<double>& g, double rate) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] -= rate * g[i];
}

/// A row of the table; `value` must not exceed `bound`.
void expect_under(const char* method, const std::string& setting, double value, double bound) {
  EXPECT_LE(value, bound) << method << ", " << setting;
  EXPECT_GT(value, 0) << "nothing was measured";
  if (const auto file = core::env("TRIREME_CONVERGENCE"))
    std::ofstream(*file, std::ios::app)
        << core::Json(
               {{"method", method}, {"setting", setting}, {"error", value}, {"bound", bound}})
               .dump()
        << "\n";
}

double synchronous(int workers, double rate, int steps) {
  const Quadratic f;
  std::mt19937_64 random(7);
  double sum = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> x = kStart;
    for (int t = 0; t < steps; ++t) {
      std::vector<double> mean(kDim);
      for (int w = 0; w < workers; ++w) {
        const auto g = f.gradient(x, random);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += g[i] / workers;
      }
      step(x, mean, rate);
    }
    sum += Quadratic::distance2(x);
  }
  return sum / kTrials;
}

// Bottou, Curtis and Nocedal 2018, theorem 4.6 for a constant rate, in the exact form that additive
// noise allows: E|x_T - x*|^2 <= (1 - r mu)^2T |x_0 - x*|^2 + r s^2 / (n mu (2 - r mu)).
TEST(Convergence, OfSynchronousSgdHasANoiseThatWorkersDivide) {
  constexpr double kRate = 0.1 / kL;
  constexpr int kSteps = 600;
  std::vector<double> errors;
  for (const int workers : {1, 4, 16}) {
    const double bound = std::pow(1 - kRate * kMu, 2 * kSteps) * kR2 +
                         kRate * kSigma2 / (workers * kMu * (2 - kRate * kMu));
    errors.push_back(synchronous(workers, kRate, kSteps));
    expect_under("synchronous", fmt::format("{} workers", workers), errors.back(), bound);
  }
  EXPECT_NEAR(errors[0] / errors[1], 4, 1.2);  // 20 trials of 32 dims
  EXPECT_NEAR(errors[0] / errors[2], 16, 5);
}

/// x_{t+1} = x_t - r g(x_{t - delay}), as a worker that is `delay` updates late.
double asynchronous(int delay, double rate, int steps, double noise = 1) {
  const Quadratic f;
  std::mt19937_64 random(8);
  double sum = 0;
  for (int trial = 0; trial < (noise > 0 ? kTrials : 1); ++trial) {
    std::vector<double> x = kStart;
    std::deque<std::vector<double>> past(static_cast<std::size_t>(delay) + 1, x);
    for (int t = 0; t < steps; ++t) {
      auto g = f.gradient(past.front(), random);
      if (noise == 0) {
        std::mt19937_64 same(1), again(1);
        const auto with = f.gradient(past.front(), same),
                   zero = f.gradient(std::vector<double>(kDim, 1.0), again);
        for (std::size_t i = 0; i < g.size(); ++i) g[i] = with[i] - zero[i];
      }
      step(x, g, rate);
      past.pop_front();
      past.push_back(x);
    }
    sum += Quadratic::distance2(x);
  }
  return sum / (noise > 0 ? kTrials : 1);
}

// With r L (delay + 1) <= 1/e the answer h to one impulse, h_{t+1} = h_t - r a h_{t-delay}, is
// positive and decreases, so h_{t+1} <= (1 - r a) h_t from t = delay on: E|x_T - x*|^2 <= (1 - r
// mu)^2T |x_0 - x*|^2 + r^2 s^2 (delay + 1 / (r mu (2 - r mu))).
TEST(Convergence, OfAsynchronousSgdNeedsARateThatDelayDivides) {
  for (const int delay : {0, 1, 4, 16}) {
    const double rate = 1 / (std::numbers::e * kL * (delay + 1));
    const int steps = 400 * (delay + 1);
    const double bound = std::pow(1 - rate * kMu, 2 * steps) * kR2 +
                         rate * rate * kSigma2 * (delay + 1 / (rate * kMu * (2 - rate * kMu)));
    expect_under("asynchronous", fmt::format("delay {}", delay), asynchronous(delay, rate, steps),
                 bound);
    // The recursion of one direction is stable up to a rate of 2 sin(pi / (4 delay + 2)) / L, and
    // not beyond (Levin and May 1976).
    const double edge = 2 * std::sin(std::numbers::pi / (4 * delay + 2)) / kL;
    EXPECT_LT(asynchronous(delay, 0.95 * edge, 4000, 0), 1e-3 * kR2) << delay;
    EXPECT_GT(asynchronous(delay, 1.05 * edge, 4000, 0), 1e3 * kR2) << delay;
  }
}

struct Averaged {
  double gap;        // f of the weighted average iterate, minus the least f
  double g2;         // the largest E|g|^2 on the way
  double drift = 0;  // local SGD: mean squared distance of workers from their mean / rate^2
};

/// Weights (a + t)^2, as both papers below take the average.
class IterateAverage {
 public:
  void add(const std::vector<double>& x, double weight) {
    for (std::size_t i = 0; i < x.size(); ++i) sum_[i] += weight * x[i];
    all_ += weight;
  }
  std::vector<double> value() const {
    auto mean = sum_;
    for (double& one : mean) one /= all_;
    return mean;
  }
  double total() const { return all_; }

 private:
  std::vector<double> sum_ = std::vector<double>(kDim);
  double all_ = 0;
};

Averaged local_sgd(int workers, int every, int steps, double a) {
  const Quadratic f;
  const auto outer = parallel::make_averaging();
  std::mt19937_64 random(9);
  Averaged result{};
  std::vector<double> g2(static_cast<std::size_t>(steps)), drifts(g2);
  for (int trial = 0; trial < kTrials; ++trial) {
    at::Tensor start = torch::zeros({kDim}, torch::kDouble);
    std::vector<std::vector<double>> x(static_cast<std::size_t>(workers), kStart);
    IterateAverage average;
    for (int t = 0; t < steps; ++t) {
      const double rate = 4 / (kMu * (a + t));
      for (auto& one : x) {
        average.add(one, (a + t) * (a + t));
        const auto g = f.gradient(one, random);
        g2[static_cast<std::size_t>(t)] += squared(g) / (workers * kTrials);
        step(one, g, rate);
      }
      if ((t + 1) % every != 0) continue;
      at::Tensor mean = torch::zeros({kDim}, torch::kDouble);
      for (auto& one : x) mean += torch::from_blob(one.data(), {kDim}, torch::kDouble) / workers;
      for (auto& one : x) {
        const at::Tensor apart = torch::from_blob(one.data(), {kDim}, torch::kDouble) - mean;
        drifts[static_cast<std::size_t>(t)] +=
            apart.square().sum().item<double>() / (rate * rate * workers * kTrials);
      }
      outer->advance(start, mean, {}, {});
      const auto* common = start.data_ptr<double>();
      for (auto& one : x) one.assign(common, common + kDim);
    }
    result.gap += f.loss(average.value()) / kTrials;
  }
  result.g2 = *std::max_element(g2.begin(), g2.end());
  result.drift = *std::max_element(drifts.begin(), drifts.end());
  return result;
}

// Stich 2019, theorem 2.2: rate 4 / (mu (a + t)), a = max(16 L / mu, H), weights (a + t)^2 with the
// sum S: E f(x^) - f* <= mu a^3 / (2 S) |x_0 - x*|^2 + 4 T (T + 2a) / (mu K S) s^2 + 256 T / (mu^2
// S) G^2 H^2 L.
// Lemma 3.3 there: workers are at most 4 r^2 G^2 H^2 from their mean, squared and on average. On a
// quadratic that all workers share, averaging commutes with the steps, so that H shows in this
// distance and not in the loss.
TEST(Convergence, OfLocalSgdPaysForStepsBetweenMeetingsOnly) {
  constexpr int kSteps = 1500;
  std::vector<double> gaps, drifts;
  for (const int workers : {1, 8})
    for (const int every : {1, 5, 25}) {
      const double a = std::max(16 * kL / kMu, static_cast<double>(every));
      double s = 0;
      for (int t = 0; t < kSteps; ++t) s += (a + t) * (a + t);
      const auto [gap, g2, drift] = local_sgd(workers, every, kSteps, a);
      const double bound = kMu * a * a * a / (2 * s) * kR2 +
                           4 * kSteps * (kSteps + 2 * a) / (kMu * workers * s) * kSigma2 +
                           256 * kSteps / (kMu * kMu * s) * g2 * every * every * kL;
      expect_under("local", fmt::format("{} workers, H = {}", workers, every), gap, bound);
      gaps.push_back(gap);
      if (workers == 1) continue;
      expect_under("local, drift / rate^2", fmt::format("{} workers, H = {}", workers, every),
                   drift, 4 * g2 * every * every);
      drifts.push_back(drift);
    }
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_LT(gaps[i + 3], gaps[i] / 3) << "eight workers have less noise, also with local steps";
  EXPECT_GT(drifts[1], 3 * drifts[0]);
  EXPECT_GT(drifts[2], 3 * drifts[1]);
}

enum class Feedback : uint8_t { On, Off };

Averaged compressed_sgd(double ratio, int steps, double a, Feedback feedback) {
  const Quadratic f;
  const auto topk = compress::make_compressor({.kind = compress::Kind::TopK, .ratio = ratio});
  std::mt19937_64 random(10);
  Averaged result{};
  std::vector<double> g2(static_cast<std::size_t>(steps));
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> x = kStart;
    const at::Tensor residual = torch::zeros({kDim}, torch::kDouble);
    at::Tensor sent = torch::zeros({kDim}, torch::kDouble);
    IterateAverage average;
    for (int t = 0; t < steps; ++t) {
      average.add(x, (a + t) * (a + t));
      auto g = f.gradient(x, random);
      g2[static_cast<std::size_t>(t)] += squared(g) / kTrials;
      const at::Tensor update =
          torch::from_blob(g.data(), {kDim}, torch::kDouble) * (8 / (kMu * (a + t)));
      const at::Tensor bytes = feedback == Feedback::On
                                   ? topk->encode_with_feedback(update, residual, {})
                                   : topk->encode(update, {});
      topk->decode(bytes, sent);
      const auto* by = sent.data_ptr<double>();
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= by[i];
    }
    result.gap += f.loss(average.value()) / kTrials;
  }
  result.g2 = *std::max_element(g2.begin(), g2.end());
  return result;
}

// Stich, Cordonnier and Jaggi 2018, theorem 2.4 with alpha = 5: rate 8 / (mu (a + t)), a >= 7 d/k
// (and 16 L / mu, so that no step is too long), S as above: E f(x^) - f* <= 4 T (T + 2a) / (mu S)
// G^2 + mu a^3 / (8 S) |x_0 - x*|^2
//                 + 64 T (1 + 2 L / mu) / (3 mu S) x 20 (d/k)^2 G^2.
TEST(Convergence, OfCompressedSgdWithFeedbackForgetsTheCompression) {
  constexpr int kSteps = 3000;
  for (const int k : {32, 4, 1}) {
    const double fold = static_cast<double>(kDim) / k, a = std::max(7 * fold, 16 * kL / kMu);
    double s = 0;
    for (int t = 0; t < kSteps; ++t) s += (a + t) * (a + t);
    const auto [gap, g2, none] = compressed_sgd(1 / fold, kSteps, a, Feedback::On);
    const double bound = 4 * kSteps * (kSteps + 2 * a) / (kMu * s) * g2 +
                         kMu * a * a * a / (8 * s) * kR2 +
                         64 * kSteps * (1 + 2 * kL / kMu) / (3 * kMu * s) * 20 * fold * fold * g2;
    expect_under("topk with feedback", fmt::format("{} of {} sent", k, kDim), gap, bound);
    if (k == 1) {
      EXPECT_GT(compressed_sgd(1 / fold, kSteps, a, Feedback::Off).gap, 3 * gap)
          << "without feedback the small directions are never sent";
    }
  }
}

}  // namespace
}  // namespace trireme::test
