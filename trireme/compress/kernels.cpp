#include "trireme/compress/kernels.h"

#include "trireme/comm/kernels.h"
#include "trireme/core/error.h"

namespace trireme::compress {

const Kernels& kernels_named(std::string_view name) {
  const std::string_view wanted = name.empty() ? comm::kernels().name : name;
  for (const Kernels* each : runnable_kernels()) {
    if (wanted == each->name) return *each;
  }
  throw ConfigError(fmt::format("this CPU has no kernels '{}' for compression", wanted));
}

}  // namespace trireme::compress
