// How long do ranks take to meet and to all-reduce 4 KB for the first time? Measured from when the
// last of them has loaded libtorch and entered main until all are done.
//
//   trireme run -n 64 build/bin/meeting
//   TRIREME_BACKEND=tcp trireme run -n 256 build/bin/meeting
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

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
  const double joined = now_ms();
  auto data = at::full({1024}, 1.0, at::kFloat);
  world.all_reduce(data).wait();
  const double met = now_ms();
  auto last = at::tensor({entered, joined, met}, at::kDouble);
  world.all_reduce(last, trireme::comm::ReduceOp::Max).wait();
  if (data[1023].item<float>() != static_cast<float>(world.size())) return 1;
  if (world.rank() != 0) return 0;
  const double* at = last.const_data_ptr<double>();
  const trireme::core::Json line = {{"bench", "meeting"},
                                    {"backend", world.backend()},
                                    {"ranks", world.size()},
                                    {"init_ms", at[1] - at[0]},
                                    {"ms", at[2] - at[0]}};
  std::printf("%s\n", line.dump().c_str());
}
