#include "sim/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/linear.h"
#include "sim/sim_worker.h"
#include "trireme/ps/values.h"

namespace trireme::sim {

namespace {

std::string at_read(const Read& read, size_t range, size_t batch) {
  return fmt::format("worker {} (life {}) at clock {}, {} us, range {}, batch {}: {}", read.worker,
                     read.life, read.clock, read.end.count(), range, batch,
                     read.ledger[range][batch]);
}

/// Whether every range of the ledger showed the batch; the first range that did not.
std::optional<size_t> range_without(const Read& read, ps::Batch batch) {
  for (size_t range = 0; range < read.ledger.size(); ++range)
    if (read.ledger[range][batch] < 1) return range;
  return {};
}

void check_values(const Read& read, Breaches& found) {
  for (size_t range = 0; range < read.ledger.size(); ++range)
    for (size_t batch = 0; batch < read.ledger[range].size(); ++batch)
      if (const double value = read.ledger[range][batch]; value != 0 && value != 1)
        found.push_back({Promise::Once, at_read(read, range, batch)});
}

void check_not_older(const Read& before, const Read& read, Breaches& found) {
  for (size_t range = 0; range < read.ledger.size(); ++range)
    for (size_t batch = 0; batch < read.ledger[range].size(); ++batch)
      if (read.ledger[range][batch] < before.ledger[range][batch])
        found.push_back({Promise::Monotonic, at_read(read, range, batch) + " after 1"});
}

}  // namespace

/// An update in lockstep is shown when its clock is whole, which check_bound looks at.
void check_reads(const ps::JobConfig& job, const History& history, Breaches& found) {
  std::map<std::pair<uint32_t, uint32_t>, const Read*> last;  // by worker and generation
  for (const Read& read : history.reads) {
    check_values(read, found);
    const Read*& before = last[{read.worker, read.generation}];
    if (before) check_not_older(*before, read, found);
    before = &read;
    for (const Write& write : history.writes) {
      if (write.generation != read.generation || write.end == ps::Time::max()) continue;
      const bool own = write.worker == read.worker;
      if (write.end > (own ? read.end : read.begin) || job.in_lockstep(kLedger)) continue;
      if (const auto range = range_without(read, write.batch))
        found.push_back({own ? Promise::OwnWrites : Promise::Kept,
                         at_read(read, *range, write.batch) +
                             fmt::format(", acknowledged to worker {} at {} us", write.worker,
                                         write.end.count())});
    }
  }
}

void check_bound(const ps::JobConfig& job, const History& history, Breaches& found) {
  const auto tau = static_cast<ps::Clock>(job.tables[kLedger].tau);
  if (job.tables[kLedger].consistency == ps::Consistency::Free) return;
  for (const Read& read : history.reads)
    for (const Write& write : history.writes) {
      if (write.generation != read.generation || write.end == ps::Time::max()) continue;
      if (write.clock + tau + 1 > read.clock) continue;
      if (const auto range = range_without(read, write.batch))
        found.push_back({Promise::Bound, at_read(read, *range, write.batch) +
                                             fmt::format(", which worker {} did at clock {}",
                                                         write.worker, write.clock)});
    }
}

void check_whole_clocks(const ps::JobConfig& job, const History& history, Breaches& found) {
  if (!job.in_lockstep(kLedger)) return;
  for (const Read& read : history.reads)
    for (size_t range = 0; range < read.ledger.size(); ++range)
      for (size_t batch = 0; batch < read.ledger[range].size(); ++batch)
        if (read.ledger[range][batch] != read.ledger[range][batch - batch % job.workers])
          found.push_back({Promise::Exact, at_read(read, range, batch) + ", not as its clock"});
}

void check_counters(const ps::JobConfig& job, const History& history, Breaches& found) {
  if (job.tables[kCounters].consistency != ps::Consistency::Free) return;
  for (uint64_t key = 0; key < kKeys; ++key) {
    std::map<ps::Batch, CounterOp> additions;
    for (const Write& write : history.writes) {
      if (write.batch % kKeys != key) continue;
      auto [at, is_new] = additions.try_emplace(write.batch, CounterOp{write.begin, write.end});
      at->second.begin = std::min(at->second.begin, write.begin);
      at->second.end = std::min(at->second.end, write.end);
    }
    std::vector<CounterOp> ops;
    for (const auto& [batch, op] : additions) ops.push_back(op);
    for (const Read& read : history.reads)
      ops.push_back({read.begin, read.end, true, read.counters[key]});
    if (!is_linearizable(std::move(ops)))
      found.push_back({Promise::Linear, fmt::format("key {}", key)});
  }
}

std::vector<double> plain_loop(const ps::JobConfig& job) {
  constexpr double kLr = 0.05, kMomentum = 0.5;  // as in scenario.cpp
  const double clip = job.tables[kWeights].clip_norm;
  std::vector<double> weights(kWeightElems), velocity(kWeightElems);
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = ps::first_value(job.seed, kWeights, 0, i);
  for (ps::Batch first = 0; first < job.batches(); first += job.workers) {
    std::vector<double> mean(kWeightElems);
    double total = 0, squares = 0;
    for (ps::Batch batch = first; batch < first + job.workers; ++batch) {
      const std::vector<double> gradient = gradient_of(batch, weights);
      total += weight_of(batch);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += weight_of(batch) * gradient[i];
    }
    for (double& value : mean) {
      value /= total;
      squares += value * value;
    }
    // As torch's clip_grad_norm_.
    const double scale = clip > 0 ? std::min(1.0, clip / (std::sqrt(squares) + 1e-6)) : 1.0;
    for (size_t i = 0; i < mean.size(); ++i) {
      velocity[i] = kMomentum * velocity[i] + scale * mean[i];
      weights[i] -= kLr * velocity[i];
    }
  }
  return weights;
}

}  // namespace trireme::sim
