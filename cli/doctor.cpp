#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <torch/version.h>

#include <cstdio>

#include "cli/rank_commands.h"
#include "trireme/comm/kernels.h"
#include "trireme/core/error.h"
#include "trireme/mesh/init.h"

namespace trireme::cli {

int doctor(const std::vector<std::string>&) {
  fmt::print("libtorch              {} (CPU capability {}, {} threads)\n", TORCH_VERSION,
             at::get_cpu_capability(), at::get_num_threads());
  fmt::print("CUDA                  {}\n",
             at::hasCUDA()
                 ? fmt::format("{} devices", at::globalContext().hasCUDA()
                                                 ? at::detail::getCUDAHooks().deviceCount()
                                                 : 0)
                 : "none in this libtorch, or no device");
  fmt::print("reductions            {}\n", comm::kernels().name);
  return 0;
}

int doctor_ranks(const std::vector<std::string>&) {
  const auto world = init();
  auto sum = at::full({1024}, world.rank() + 1.0);
  world.all_reduce(sum).wait();
  const double expected = world.size() * (world.size() + 1) / 2.0;
  if (!sum.eq(expected).all().item<bool>())
    throw Error(fmt::format("the all-reduce of {} ranks gave {} instead of {}", world.size(),
                            sum[0].item<float>(), expected));
  return 0;
}

}  // namespace trireme::cli
