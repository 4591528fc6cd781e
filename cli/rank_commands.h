#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// `trireme-rank bench-comm`: times the collectives of one backend. Returns the exit code.
int bench_comm(const std::vector<std::string>& args);

/// `trireme-rank doctor`: says which libtorch this is. `doctor-ranks`: two ranks add two numbers.
int doctor(const std::vector<std::string>& args);
int doctor_ranks(const std::vector<std::string>& args);

}  // namespace trireme::cli
