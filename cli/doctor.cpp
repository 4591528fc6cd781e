#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdio>

#include "cli/doctor_gpu.h"
#include "cli/rank_commands.h"
#include "trireme/comm/kernels.h"
#include "trireme/core/error.h"
#include "trireme/mesh/init.h"

namespace trireme::cli {

namespace {

/// All ranks add 1024 numbers on their devices. Throws Error if the sum is wrong.
void add_numbers(const comm::Communicator& world, c10::Device device) {
  auto sum = at::full({1024}, world.rank() + 1.0, device);
  world.all_reduce(sum).wait();
  const double expected = world.size() * (world.size() + 1) / 2.0;
  if (!sum.eq(expected).all().item<bool>())
    throw Error(fmt::format("the all-reduce of {} ranks on {} gave {} instead of {}", world.size(),
                            device.str(), sum[0].item<float>(), expected));
}

}  // namespace

int doctor(const std::vector<std::string>&) {
  fmt::print("{:<22}{} (CPU capability {}, {} threads)\n", "libtorch", TORCH_VERSION,
             at::get_cpu_capability(), at::get_num_threads());
  fmt::print("{:<22}{}\n", "reductions", comm::kernels().name);
  return report_gpus() ? 0 : 1;
}

int doctor_ranks(const std::vector<std::string>&) {
  add_numbers(init(), at::kCPU);
  return 0;
}

int doctor_gpu_ranks(const std::vector<std::string>&) {
  const int devices = at::globalContext().hasCUDA() ? at::getNumGPUs() : 0;
  if (devices == 0) return 0;
  const auto world = init();
  add_numbers(world, {at::kCUDA, static_cast<c10::DeviceIndex>(world.rank() % devices)});
  if (world.rank() == 0)
    fmt::print("{:<22}{} ranks on {} of {} GPUs added their tensors\n", "GPU ranks", world.size(),
               std::min(world.size(), devices), devices);
  return 0;
}

}  // namespace trireme::cli
