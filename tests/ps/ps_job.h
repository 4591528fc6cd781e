// Small jobs for tests of real processes: one that a plain loop trains alike, and one that counts.
#pragma once

#include <vector>

#include "trireme/ps/job.h"
#include "trireme/ps/values.h"

namespace trireme::test {

constexpr uint64_t kPsElems = 40;

struct PsJob {
  uint32_t servers = 2, workers = 2, copies = 1;
  uint64_t batches = 40;
  bool counts = false;  ///< rows to which free workers add
};

inline ps::JobConfig ps_job(const PsJob& of) {
  ps::JobConfig job{.name = "real", .seed = 5, .servers = of.servers, .workers = of.workers};
  job.copies = of.copies;
  job.ranges = 8;
  job.data = {.epochs = 1, .batches_per_epoch = of.batches, .steps_per_task = 2};
  job.timing.heartbeat = std::chrono::milliseconds(100);
  job.timing.dead_after = std::chrono::milliseconds(1500);
  job.timing.retry = std::chrono::milliseconds(200);
  job.tables = {{.name = "weights",
                 .type = ps::ValueType::Float64,
                 .elems = kPsElems,
                 .rule = ps::make_sgd({.lr = 0.1, .momentum = 0.5}),
                 .init_scale = 1}};
  if (of.counts)
    job.tables = {{.name = "counters",
                   .kind = ps::TableKind::Sparse,
                   .type = ps::ValueType::Float64,
                   .elems = 1,
                   .consistency = ps::Consistency::Free,
                   .rule = ps::make_sgd({.lr = -1})}};
  return job;
}

inline std::vector<double> gradient_of(ps::Batch batch, const std::vector<double>& weights) {
  std::vector<double> gradient(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    gradient[i] = ps::first_value(7, 1, batch, i) * weights[i] + ps::first_value(7, 2, batch, i);
  return gradient;
}

inline double weight_of(ps::Batch batch) {
  return 1.0 + static_cast<double>(batch % 3);
}

/// What one process computes.
inline std::vector<double> plain_loop(const ps::JobConfig& job) {
  std::vector<double> weights(kPsElems), velocity(kPsElems);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = ps::first_value(job.seed, 0, 0, i);
  for (ps::Batch first = 0; first < job.batches(); first += job.workers) {
    std::vector<double> sum(kPsElems);
    double all = 0;
    for (ps::Batch batch = first; batch < first + job.workers; ++batch) {
      const auto gradient = gradient_of(batch, weights);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weight_of(batch) * gradient[i];
      all += weight_of(batch);
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      velocity[i] = 0.5 * velocity[i] + sum[i] / all;
      weights[i] -= 0.1 * velocity[i];
    }
  }
  return weights;
}

}  // namespace trireme::test
