#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// The path of trireme-rank, in the folder of this program. Throws Error that says how to get it.
std::string rank_program();

/// Replaces this process by trireme-rank with these arguments. Throws Error if it cannot.
[[noreturn]] void become_rank(const std::vector<std::string>& args);

/// Runs trireme-rank with these arguments to its end, without its stdout; returns its exit code.
int ask_rank(const std::vector<std::string>& args);

/// Whether a launcher (trireme run, torchrun, mpirun, srun) started this process as one of its
/// ranks.
bool under_launcher();

}  // namespace trireme::cli
