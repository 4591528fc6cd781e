#include "trireme/comm/kernels.h"

#include <array>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::comm {

// One of each per kernels_<name>.cpp.
extern const Kernels kBaseKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

namespace {

const Kernels& pick() {
  if (const auto asked = core::env("TRIREME_CPU")) return kernels_named(*asked);
  if (cpu_supports("avx512")) return kAvx512Kernels;
  if (cpu_supports("avx2")) return kAvx2Kernels;
  return kBaseKernels;
}

}  // namespace

bool cpu_supports(std::string_view name) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (name == "avx512") {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return name == "base" || (name == "avx2" && avx2);
}

const Kernels& kernels() {
  static const Kernels& best = pick();
  return best;
}

const Kernels& kernels_named(std::string_view name) {
  for (const Kernels* each : {&kBaseKernels, &kAvx2Kernels, &kAvx512Kernels}) {
    if (name != each->name) continue;
    if (!cpu_supports(name))
      throw ConfigError(fmt::format("kernels '{}' were asked for, but this CPU lacks them", name));
    return *each;
  }
  throw ConfigError(fmt::format("there are no kernels '{}': base, avx2 or avx512", name));
}

int64_t item_bytes(core::DType dtype) {
  constexpr std::array<int64_t, 8> kBytes = {4, 8, 2, 2, 4, 8, 1, 0};
  return kBytes[static_cast<std::size_t>(dtype)];
}

}  // namespace trireme::comm
