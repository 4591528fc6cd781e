#include "cli/doctor_gpu.h"

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>

#include <cstdio>
#include <functional>

#include "trireme/comm/nccl/library.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/cuda/blas_lt.h"
#include "trireme/cuda/compiler.h"
#include "trireme/cuda/driver.h"
#include "trireme/cuda/gelu.h"

namespace trireme::cli {

namespace {

void fact(const std::string& name, const std::string& what) {
  fmt::print("{:<22}{}\n", name, what);
}

/// Prints what `look` finds, or, if it throws, the cause and the remedy. Returns whether it found.
bool look_for(const std::string& name, const std::function<std::string()>& look,
              const std::string& remedy) {
  try {
    fact(name, look());
    return true;
  } catch (const std::exception& error) {
    fact(name, "not usable");
    fact("  PROBLEM", fmt::format("{}; {}", error.what(), remedy));
    return false;
  }
}

std::string cuda_version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

/// Prints the driver and its GPUs. Returns how many there are. `cause`: why it found none is of
/// interest.
int report_driver(bool cause) {
  try {
    const auto& driver = cuda::Driver::get();
    fact("CUDA driver", "for CUDA " + cuda_version(driver.version()));
    for (int device = 0; device < driver.num_devices(); ++device) {
      const int architecture = driver.architecture(device);
      fact(fmt::format("GPU {}", device),
           fmt::format("{}, {}, compute capability {}.{}", driver.name(device),
                       core::format_bytes(driver.memory_bytes(device)), architecture / 10,
                       architecture % 10));
    }
    return driver.num_devices();
  } catch (const Error& error) {
    fact("CUDA driver", cause ? fmt::format("not usable: {}", error.what()) : "none, or no GPU");
    return 0;
  }
}

std::string describe_blas_lt() {
  const auto& library = cuda::BlasLt::get();
  const auto number = library.version();
  return fmt::format("{}.{}.{}, {}", number / 10000, number / 100 % 100, number % 100,
                     library.library.path());
}

std::string describe_nccl() {
  const auto& library = comm::nccl::Library::get();
  return fmt::format("{}, {}", comm::nccl::version_text(library.version), library.file.path());
}

/// Compiles a kernel (or finds it in the cache), runs it and compares it with libtorch's.
std::string try_kernel() {
  const auto x = at::linspace(-4, 4, 4096, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  if (!at::allclose(cuda::gelu(x), at::gelu(x, "tanh"), 1e-4, 1e-5))
    throw Error("a kernel of ours gave another result than libtorch's");
  return "one of ours ran and gave libtorch's numbers";
}

}  // namespace

bool report_gpus() {
  const auto& hooks = at::detail::getCUDAHooks();
  const bool built = hooks.hasCUDART();
  fact("CUDA in libtorch",
       built ? cuda_version(static_cast<int>(hooks.versionCUDART())) : "none: it is for the CPU");
  const int gpus = report_driver(/*cause=*/built);
  if (!built && gpus > 0)
    fact("", "to train on the GPU, build with a libtorch for CUDA: TORCH_DIR (docs/gpu.md)");
  if (!built || gpus == 0) return true;
  if (!at::globalContext().hasCUDA()) {
    fact("  PROBLEM",
         "there is a GPU, but libtorch finds none: is CUDA_VISIBLE_DEVICES empty, or the driver "
         "older than libtorch's CUDA?");
    return false;
  }
  // All of them are tried, so that one call shows all that is missing.
  bool usable =
      look_for("NVRTC", cuda::describe_compiler,
               "install nvidia-cuda-nvrtc from PyPI, or set TRIREME_NVRTC_LIBRARY to libnvrtc.so");
  usable &= look_for("cuBLASLt", describe_blas_lt, "it comes with libtorch: is its folder whole?");
  usable &= look_for("kernel", try_kernel, "is the cache ($TRIREME_CACHE) damaged? Delete it");
  try {
    fact("NCCL", describe_nccl());
  } catch (const Error& error) {
    fact("NCCL", fmt::format("none: tensors go through the host's memory ({})", error.what()));
  }
  return usable;
}

}  // namespace trireme::cli
