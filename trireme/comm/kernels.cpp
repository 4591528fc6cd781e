#include "trireme/comm/kernels.h"

#include <algorithm>
#include <array>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

const Kernels& pick_kernels() {
  if (const auto asked = core::env("TRIREME_CPU")) return kernels_named(*asked);
  return *runnable_kernels().back();
}

}  // namespace

bool cpu_supports(std::string_view name) {
  const auto runnable = runnable_kernels();
  return std::any_of(runnable.begin(), runnable.end(),
                     [&](const Kernels* each) { return name == each->name; });
}

const Kernels& kernels() {
  static const Kernels& best = pick_kernels();
  return best;
}

const Kernels& kernels_named(std::string_view name) {
  for (const Kernels* each : runnable_kernels()) {
    if (name == each->name) return *each;
  }
  throw ConfigError(
      fmt::format("this CPU has no kernels '{}'; TRIREME_CPU must be base, avx2 or avx512", name));
}

int64_t item_bytes(core::DType dtype) {
  constexpr std::array<int64_t, 8> kBytes = {4, 8, 2, 2, 4, 8, 1, 0};
  return kBytes[static_cast<std::size_t>(dtype)];
}

}  // namespace trireme::comm
