#include "trireme/train/world.h"

#include <malloc.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <thread>

#include "trireme/comm/local/local.h"
#include "trireme/config/mesh.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/mesh/init.h"
#include "trireme/mesh/rendezvous.h"

namespace trireme::train {

namespace {

/// Makes malloc keep freed memory. Every step allocates the same tensors again, and the kernel
/// would have to map and clear each page anew.
void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/// Uses run.threads threads, or what the launcher says, or this rank's share of the cores.
void set_threads(const config::Config& config, const comm::Communicator& world) {
  if (config.run.threads > 0) return at::set_num_threads(static_cast<int>(config.run.threads));
  if (core::env_int("OMP_NUM_THREADS").value_or(0) > 0) return;
  int64_t here = world.size();
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})
    here = core::env_int(name).value_or(here);
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(std::max<int64_t>(1, cores / std::max<int64_t>(1, here))));
}

/// Makes the computation on a GPU give the same bits every time: libtorch picks other algorithms,
/// and cuBLAS gets a workspace of its own for each stream. Must come before CUDA starts.
void set_determinism(const config::Config& config) {
  if (config.run.deterministic != config::Deterministic::Yes || !uses_cuda(config)) return;
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // we read no such memory
}

int run_threads(const config::Config& config,
                const std::function<int(const comm::Communicator&)>& body) {
  const int size = config::wanted_ranks(config.mesh);
  const auto hub = comm::make_local_hub(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<int> codes(static_cast<std::size_t>(size));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads =
      config.run.threads > 0 ? static_cast<int>(config.run.threads) : std::max(1, cores / size);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        at::set_num_threads(threads);
        try {
          const comm::Communicator world(
              "world",
              comm::make_local(hub, rank, {.timeout = core::from_seconds(config.comm.timeout_s)}));
          codes[static_cast<std::size_t>(rank)] = body(world);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  // Throw the first cause: a CommError only says that another rank has ended.
  std::exception_ptr first;
  for (const auto& error : errors) {
    if (!error) continue;
    if (!first) first = error;
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
    } catch (...) {
      first = error;
      break;
    }
  }
  if (first) std::rethrow_exception(first);
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace

bool uses_cuda(const config::Config& config) {
  const config::Device wish = config.run.device;
  const bool there = wish != config::Device::Cpu && torch::cuda::is_available();
  if (wish == config::Device::Cuda && !there)
    throw ConfigError(
        "run.device = \"cuda\": this libtorch has no CUDA, or the machine no device; use \"cpu\"");
  return there;
}

c10::Device pick_device(const config::Config& config, const comm::Communicator& world) {
  if (!uses_cuda(config)) return at::kCPU;
  // The workers of a parameter server job are worlds of their own, and share the GPUs of the host.
  const auto worker = core::env_int("TRIREME_ROLE_INDEX").value_or(0);
  const auto here = worker * world.size() + core::env_int("LOCAL_RANK").value_or(world.rank());
  const auto devices = static_cast<int64_t>(torch::cuda::device_count());
  return {at::kCUDA, static_cast<c10::DeviceIndex>(here % devices)};
}

int num_ranks(const config::Config& config) {
  const int started = find_rendezvous(core::env("TRIREME_INIT").value_or("")).size;
  if (config.comm.backend != config::Backend::Local) return started;
  if (started > 1)
    throw ConfigError(
        fmt::format("comm.backend = \"local\" makes the ranks as threads of one process, but the "
                    "launcher started {}: use -n 1 or another comm.backend",
                    started));
  return config::wanted_ranks(config.mesh);
}

int planned_ranks(const config::Config& config) {
  const auto where = find_rendezvous(core::env("TRIREME_INIT").value_or(""));
  return where.kind == Rendezvous::Kind::Alone ? config::wanted_ranks(config.mesh)
                                               : num_ranks(config);
}

int own_rank() {
  return find_rendezvous(core::env("TRIREME_INIT").value_or("")).rank;
}

int with_ranks(const config::Config& config,
               const std::function<int(const comm::Communicator& world)>& body) {
  keep_freed_memory();
  set_determinism(config);
  if (config.comm.backend == config::Backend::Local) return run_threads(config, body);
  const auto timeout = core::from_seconds(config.comm.timeout_s);
  InitOptions options;
  if (config.comm.backend != config::Backend::Auto)
    options.backend = to_string(config.comm.backend);
  if (!core::env("TRIREME_TIMEOUT_S")) options.timeout = timeout;
  if (!core::env("TRIREME_RATE_MBIT")) options.rate_mbit = config.comm.rate_mbit;
  const comm::Communicator world = init(options);
  set_threads(config, world);
  return body(world);
}

}  // namespace trireme::train
