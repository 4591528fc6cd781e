// A job whose workers write down what they wrote and saw, for tests of the staleness bound: on
// threads of the test, and as processes (stale_program.cpp).
#pragma once

#include <thread>
#include <vector>

#include "tests/ps/staleness.h"
#include "trireme/ps/client.h"
#include "trireme/ps/values.h"

namespace trireme::test {

constexpr uint32_t kStaleWorkers = 3, kStaleRanges = 4;
constexpr uint64_t kStaleBatches = 3 * 400;

inline ps::JobConfig stale_job(int64_t tau) {
  ps::JobConfig job{.name = "stale", .servers = 2, .workers = kStaleWorkers};
  job.copies = 1;
  job.ranges = kStaleRanges;
  job.lanes = 2;  // two threads of each server
  job.data = {.epochs = 1, .batches_per_epoch = kStaleBatches, .steps_per_task = 20};
  // Lockstep divides by the weights that came.
  const double rate = tau == 0 ? -static_cast<double>(kStaleWorkers) : -1.0;
  job.tables = {{.name = "seen",
                 .type = ps::ValueType::Float64,
                 .elems = kStaleRanges * kStaleWorkers,
                 .consistency = ps::Consistency::Stale,
                 .tau = tau,
                 .rule = ps::make_sgd({.lr = rate})}};
  return job;
}

/// What a read of the table saw.
inline StaleRead stale_read(uint32_t worker, ps::Clock clock, const std::vector<double>& values) {
  StaleRead read{.worker = worker, .clock = clock};
  for (size_t range = 0; range < kStaleRanges; ++range)
    read.seen.emplace_back(
        values.begin() + static_cast<std::ptrdiff_t>(range * kStaleWorkers),
        values.begin() + static_cast<std::ptrdiff_t>((range + 1) * kStaleWorkers));
  return read;
}

/// Worker 0 takes a while for each step.
inline StaleLog stale_work(ps::Client& client, uint32_t worker) {
  std::vector<double> ones(kStaleRanges * kStaleWorkers);
  for (size_t range = 0; range < kStaleRanges; ++range) ones[range * kStaleWorkers + worker] = 1;
  StaleLog log;
  while (const auto work = client.next()) {
    for (size_t step = 0; step < work->batches.size(); ++step) {
      const ps::Client::Operation at{.clock = work->clock + step,
                                     .view_version = work->view_version};
      auto pull = at, push = at;
      pull.pull = true;
      log.reads.push_back(stale_read(
          worker, at.clock, ps::values_of<double>(client.wait(client.start(pull)).values())));
      if (worker == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      push.push = true;
      push.batch = work->batches[step];
      push.values = ps::bytes_of_values<double>(ones);
      (void)client.wait(client.start(std::move(push)));
      log.writes.push_back(at.clock);
    }
    client.done(*work);
  }
  return log;
}

}  // namespace trireme::test
