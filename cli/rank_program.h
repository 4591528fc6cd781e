#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// The program trireme-rank, which lies beside this one. Throws Error that says how to get it.
std::string rank_program();

/// Becomes trireme-rank with these arguments, under a launcher that has set RANK already. Returns
/// only by throwing Error.
[[noreturn]] void become_rank(const std::vector<std::string>& args);

/// Runs trireme-rank with these arguments to its end, unheard but for its errors; its exit code.
int ask_rank(const std::vector<std::string>& args);

/// Has a launcher (trireme run, torchrun, mpirun, srun) started this process as one of its ranks?
bool under_launcher();

}  // namespace trireme::cli
