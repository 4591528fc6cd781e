// How long do ranks take to meet? From the moment the last of them has loaded libtorch and entered
// main, to the moment init() has returned on all.
//
//   trireme run -n 8 build/bin/meeting
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdio>

#include "trireme/core/json.h"
#include "trireme/trireme.h"

namespace {

/// CLOCK_MONOTONIC: the same for all processes of a machine.
double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

}  // namespace

int main() {
  const double entered = now_ms();
  const auto world = trireme::init();
  const double met = now_ms();
  auto last_entered = at::full({1}, entered, at::kDouble),
       last_met = at::full({1}, met, at::kDouble);
  world.all_reduce(last_entered, trireme::comm::ReduceOp::Max).wait();
  world.all_reduce(last_met, trireme::comm::ReduceOp::Max).wait();
  if (world.rank() != 0) return 0;
  const double ms = last_met.item<double>() - last_entered.item<double>();
  const trireme::core::Json line = {
      {"bench", "meeting"}, {"backend", world.backend()}, {"ranks", world.size()}, {"ms", ms}};
  std::printf("%s\n", line.dump().c_str());
}
