#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// The commands: each takes the words after its name and returns the exit code.
int run_command(const std::vector<std::string>& args);
int bench_command(const std::vector<std::string>& args);
int ckpt_command(const std::vector<std::string>& args);
int doctor_command(const std::vector<std::string>& args);

}  // namespace trireme::cli
