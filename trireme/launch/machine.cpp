#include "trireme/launch/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::launch {

int num_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int num_gpus() {
  constexpr std::string_view kPrefix = "nvidia";
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) && core::parse_int(name.substr(kPrefix.size()))) ++count;
  }
  return count;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "this host";
}

int parse_num_ranks(std::string_view text) {
  if (text == "cpu") return num_cores();
  if (text == "auto") return num_gpus() > 0 ? num_gpus() : num_cores();
  if (text == "gpu") {
    if (const int gpus = num_gpus(); gpus > 0) return gpus;
    throw ConfigError(
        "one rank per GPU was asked for ('gpu'), but there is no /dev/nvidia0; "
        "use a number, or 'cpu'");
  }
  const auto ranks = core::parse_int(text);
  if (!ranks || *ranks < 1 || *ranks > 1'000'000)
    throw ConfigError(fmt::format(
        "'{}' is not a number of ranks: write 1 or more, 'cpu', 'gpu' or 'auto'", text));
  return static_cast<int>(*ranks);
}

}  // namespace trireme::launch
