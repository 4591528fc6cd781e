// How far each method ends from the minimum of a quadratic, against what algebra says it must be.
// docs/convergence.md has the derivations and the table, which bench/convergence prints from the
// lines that these tests write to $TRIREME_CONVERGENCE.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "support/backends.h"
#include "trireme/compress/factory.h"
#include "trireme/core/env.h"
#include "trireme/core/json.h"
#include "trireme/parallel/local_updates.h"

namespace trireme::test {
namespace {

using Vector = std::vector<double>;

// f(x) = 1/2 sum_i a_i (x_i - 1)^2, a_i from mu to L. Gradients come with normal noise of
// E|noise|^2 = s^2. All runs begin at x = 0.
constexpr int kDim = 32, kTrials = 20;
constexpr double kMu = 0.1, kL = 1, kSigma2 = 1;

const Vector kCurvatures = [] {
  Vector a(kDim);
  for (int i = 0; i < kDim; ++i)
    a[static_cast<std::size_t>(i)] = kMu * std::pow(kL / kMu, i / (kDim - 1.0));
  return a;
}();

Vector gradient(const Vector& x, std::mt19937_64* random) {
  std::normal_distribution<double> noise(0, std::sqrt(kSigma2 / kDim));
  Vector g(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    g[i] = kCurvatures[i] * (x[i] - 1) + (random != nullptr ? noise(*random) : 0);
  return g;
}

double distance2(const Vector& x) {
  double sum = 0;
  for (const double one : x) sum += (one - 1) * (one - 1);
  return sum;
}

/// A number that a test measures as a mean over samples: its expectation, and its own deviation.
struct Expected {
  double mean = 0, deviation = 0;
};

void write_row(const char* method, const std::string& setting, double value, double theory) {
  if (const auto file = core::env("TRIREME_CONVERGENCE"))
    std::ofstream(*file, std::ios::app)
        << core::Json(
               {{"method", method}, {"setting", setting}, {"error", value}, {"theory", theory}})
               .dump()
        << "\n";
}

/// Five deviations: by chance one such test of a million fails, and seeds are fixed.
void expect_near(const char* method, const std::string& setting, double value, Expected expected) {
  EXPECT_NEAR(value, expected.mean, 5 * expected.deviation) << method << ", " << setting;
  write_row(method, setting, value, expected.mean);
}

/// One direction of e_{t+1} = e_t - r a e_{t-delay} - r noise, from e = -1: the mean and the
/// variance of e after so many steps. `noise`: its variance in this direction.
struct Direction {
  double mean = 0, variance = 0;
};
Direction direction_after(int steps, double a, double rate, double noise, int delay = 0) {
  const auto past = static_cast<std::size_t>(delay);
  std::deque<double> start(past + 1, -1.0), impulse(past + 1, 0.0);
  impulse.back() = 1;
  double squares = 0;
  for (int t = 0; t < steps; ++t) {
    squares += impulse.back() * impulse.back();
    for (auto* one : {&start, &impulse}) {
      one->push_back(one->back() - rate * a * one->front());
      one->pop_front();
    }
  }
  return {start.back(), rate * rate * noise * squares};
}

/// E|x_T - x*|^2 as the mean of kTrials runs. `share`: by what the method multiplies s^2.
Expected distance2_after(int steps, double rate, double share, int delay = 0) {
  double mean = 0, variance = 0;
  for (const double a : kCurvatures) {
    const auto [m, v] = direction_after(steps, a, rate, share * kSigma2 / kDim, delay);
    mean += m * m + v;
    variance += 2 * v * v + 4 * m * m * v;  // of the square of a normal number
  }
  return {mean, std::sqrt(variance / kTrials)};
}

/// x_{t+1} = x_t - r (mean of the workers' g(x_{t - delay})): synchronous workers have no delay.
double descend(int workers, int delay, double rate, int steps, std::mt19937_64* random) {
  Vector x(kDim, 0.0);
  std::deque<Vector> past(static_cast<std::size_t>(delay) + 1, x);
  for (int t = 0; t < steps; ++t) {
    for (int w = 0; w < workers; ++w) {
      const Vector g = gradient(past.front(), random);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= rate * g[i] / workers;
    }
    past.pop_front();
    past.push_back(x);
  }
  return distance2(x);
}

double mean_of_trials(const std::function<double(std::mt19937_64&)>& run, int trials = kTrials) {
  std::mt19937_64 random(7);
  double sum = 0;
  for (int trial = 0; trial < trials; ++trial) sum += run(random);
  return sum / trials;
}

TEST(Convergence, OfSynchronousSgdHasANoiseThatWorkersDivide) {
  constexpr double kRate = 0.1;
  constexpr int kSteps = 300;
  for (const int workers : {1, 8})
    expect_near(
        "synchronous", fmt::format("{} workers", workers),
        mean_of_trials([&](auto& random) { return descend(workers, 0, kRate, kSteps, &random); }),
        distance2_after(kSteps, kRate, 1.0 / workers));
}

TEST(Convergence, OfAsynchronousSgdNeedsARateThatDelayDivides) {
  for (const int delay : {1, 4, 16}) {
    const double rate = 1 / (std::numbers::e * kL * (delay + 1));
    const int steps = 100 * (delay + 1);
    expect_near("asynchronous", fmt::format("delay {}", delay), mean_of_trials([&](auto& random) {
                  return descend(1, delay, rate, steps, &random);
                }),
                distance2_after(steps, rate, 1, delay));
    // One direction is stable up to a rate of 2 sin(pi / (4 delay + 2)) / L, and not beyond (Levin
    // and May 1976).
    const double edge = 2 * std::sin(std::numbers::pi / (4 * delay + 2)) / kL;
    EXPECT_LT(descend(1, delay, 0.95 * edge, 4000, nullptr), 1e-3 * kDim) << delay;
    EXPECT_GT(descend(1, delay, 1.05 * edge, 4000, nullptr), 1e3 * kDim) << delay;
  }
}

struct Local {
  double distance2 = 0;  // of the common weights at the end, mean of the trials
  double drift2 = 0;     // before a meeting, mean of meetings and trials
};

/// Every rank is a worker that counts `weights[rank]`; its parameter holds all trials.
Local local_sgd(const Vector& weights, int64_t every, double rate, int64_t steps) {
  Local result;
  run_world(kThreads, static_cast<int>(weights.size()), [&](const comm::Communicator& world) {
    at::set_num_threads(1);
    const Mesh mesh(world, {.replica = world.size()});
    const parallel::ReplicaMeshes meshes = parallel::split_replicas(mesh);
    const at::Tensor x = torch::zeros({kTrials, kDim}, torch::kDouble),
                     a = torch::tensor(kCurvatures, torch::kDouble);
    parallel::LocalUpdates local(
        meshes,
        {parallel::whole_shard(
            {.name = "x", .tensor = x, .layout = Layout({kTrials, kDim}), .init = {}}, 0,
            meshes.replica, {})},
        {.every = every});
    auto random = at::detail::createCPUGenerator(static_cast<uint64_t>(world.rank()) + 1);
    double drift2 = 0;
    for (int64_t t = 1; t <= steps; ++t) {
      const at::Tensor noise = at::randn(x.sizes(), random, x.options());
      x.sub_(rate * (a * (x - 1) + std::sqrt(kSigma2 / kDim) * noise));
      const auto meeting = local.end_step(
          {.number = t,
           .totals = torch::tensor({weights[static_cast<std::size_t>(world.rank())] / every, 0.0},
                                   torch::kDouble),
           .rate = rate});
      EXPECT_EQ(meeting.has_value(), t % every == 0);
      if (meeting) drift2 += meeting->drift * meeting->drift;
    }
    if (world.rank() != 0) return;
    result = {(x - 1).square().sum().item<double>() / kTrials,
              drift2 * static_cast<double>(every) / static_cast<double>(steps * kTrials)};
  });
  return result;
}

/// The squared distance of workers from their weighted mean p, H steps after a meeting.
Expected drift2_after(int every, double rate, const Vector& p, int samples) {
  double two = 0, three = 0;
  for (const double one : p) {
    two += one * one;
    three += one * one * one;
  }
  // z' (diag p - p p') z of independent normal z: the trace, and twice the trace of the square.
  const double trace = 1 - two, trace2 = two - 2 * three + two * two;
  Expected all;
  double variance = 0;
  for (const double a : kCurvatures) {
    const double v = direction_after(every, a, rate, kSigma2 / kDim).variance;
    all.mean += v * trace;
    variance += 2 * v * v * trace2;
  }
  all.deviation = std::sqrt(variance / samples);
  return all;
}

// On a quadratic that all workers share, averaging commutes with the steps: H shows in the drift
// and not in the distance.
TEST(Convergence, OfLocalSgdPaysForStepsBetweenMeetingsOnly) {
  constexpr double kRate = 0.1;
  constexpr int kSteps = 300;
  const Vector p = {0.7, 0.1, 0.1, 0.1};
  const double share = std::inner_product(p.begin(), p.end(), p.begin(), 0.0);
  for (const int every : {1, 5, 25}) {
    const std::string setting = fmt::format("{} workers, H = {}", p.size(), every);
    const Local local = local_sgd(p, every, kRate, kSteps);
    expect_near("local", setting, local.distance2, distance2_after(kSteps, kRate, share));
    expect_near("local, drift", setting, local.drift2,
                drift2_after(every, kRate, p, kTrials * kSteps / every));
  }
}

enum class Feedback : uint8_t { On, Off };

double compressed_sgd(double ratio, double rate, int steps, Feedback feedback,
                      int trials = kTrials) {
  const auto topk = compress::make_compressor({.kind = compress::Kind::TopK, .ratio = ratio});
  const auto run = [&](std::mt19937_64& random) {
    Vector x(kDim, 0.0);
    const at::Tensor residual = torch::zeros({kDim}, torch::kDouble);
    at::Tensor sent = torch::zeros({kDim}, torch::kDouble);
    for (int t = 0; t < steps; ++t) {
      Vector update = gradient(x, &random);
      for (double& one : update) one *= rate;
      const at::Tensor block = torch::from_blob(update.data(), {kDim}, torch::kDouble);
      topk->decode(feedback == Feedback::On ? topk->encode_with_feedback(block, residual, {})
                                            : topk->encode(block, {}),
                   sent);
      const auto* by = sent.data_ptr<double>();
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= by[i];
    }
    return distance2(x);
  };
  return mean_of_trials(run, trials);
}

/// The bound of docs/convergence.md on E|x_T - x*|^2 of SGD with feedback, if the compressor leaves
/// at most 1 - delta of a squared length.
double feedback_bound(double delta, double rate, int steps) {
  const auto size = static_cast<std::size_t>(steps);
  Vector plain(size + 1), plain_gradient(size + 1);  // B_t and B'_t
  Vector kernel(size), gradient_kernel(size);        // c_j and c'_j
  for (std::size_t t = 0; t <= size; ++t) {
    double distance = 0, slope = 0, most = 0, most_slope = 0;
    for (const double a : kCurvatures) {
      const double q = 1 - rate * a, m = std::pow(q, t);
      const double e2 = m * m + rate * rate * kSigma2 / kDim * (1 - m * m) / (1 - q * q);
      distance += e2;
      slope += a * a * e2;
      most = std::max(most, rate * a * m);
      most_slope = std::max(most_slope, rate * a * a * m);
    }
    plain[t] = std::sqrt(distance);
    plain_gradient[t] = std::sqrt(slope);
    if (t == size) break;
    kernel[t] = most;
    gradient_kernel[t] = most_slope;
  }
  Vector residual(size + 1);  // M_t
  const auto late = [&](const Vector& by, std::size_t t) {
    return std::inner_product(residual.begin(), residual.begin() + static_cast<std::ptrdiff_t>(t),
                              by.rend() - static_cast<std::ptrdiff_t>(t), 0.0);
  };
  for (std::size_t t = 0; t < size; ++t) {
    const double mean = plain_gradient[t] + late(gradient_kernel, t) + kL * residual[t];
    residual[t + 1] =
        std::sqrt((1 - delta) * (std::pow(residual[t] + rate * mean, 2) + rate * rate * kSigma2));
  }
  return std::pow(plain[size] + late(kernel, size) + residual[size], 2);
}

TEST(Convergence, OfCompressedSgdWithFeedbackForgetsTheCompression) {
  for (const auto& [k, rate] : {std::pair{8, 0.01}, std::pair{2, 0.005}}) {
    const double delta = static_cast<double>(k) / kDim;
    const int steps = static_cast<int>(std::lround(25 / rate));
    const double bound = feedback_bound(delta, rate, steps);
    const double error = compressed_sgd(delta, rate, steps, Feedback::On, 8);
    EXPECT_LE(error, bound);
    EXPECT_GT(error, bound / 8) << "the bound has become loose, or nothing was measured";
    write_row("topk with feedback, at most", fmt::format("{} of {} sent", k, kDim), error, bound);
    EXPECT_GT(compressed_sgd(delta, rate, steps, Feedback::Off, 2), bound)
        << "without feedback the small directions are never sent";
  }
  constexpr double kRate = 0.02;
  constexpr int kSteps = 1000;
  const Expected plain = distance2_after(kSteps, kRate, 1);
  EXPECT_NEAR(feedback_bound(1, kRate, kSteps), plain.mean, 1e-12) << "all is sent";
  expect_near("topk with feedback", "all sent", compressed_sgd(1, kRate, kSteps, Feedback::On),
              plain);
}

}  // namespace
}  // namespace trireme::test
