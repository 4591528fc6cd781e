#pragma once

#include <string>
#include <string_view>

namespace trireme::launch {

/// Cores that this process may run on.
int num_cores();

/// NVIDIA devices of this machine, by their /dev/nvidia0, /dev/nvidia1, ... nodes.
int num_gpus();

std::string host_name();

/// "4", "cpu" (one rank per core), "gpu" (one per GPU) or "auto" (gpu if there is one, else cpu).
/// Throws ConfigError.
int parse_num_ranks(std::string_view text);

}  // namespace trireme::launch
