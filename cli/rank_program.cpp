#include "cli/rank_program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::cli {

namespace {

/// While libtorch is loaded, before main, too little memory is terminate() without a sentence.
void refuse_little_memory() {
  constexpr rlim_t kLeast = rlim_t{430} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= kLeast) return;
  throw ConfigError(
      fmt::format("ulimit -v allows {} of memory, and libtorch alone takes {} of address space; "
                  "raise it (ulimit -v unlimited)",
                  core::format_bytes(static_cast<int64_t>(limit.rlim_cur)),
                  core::format_bytes(static_cast<int64_t>(kLeast))));
}

}  // namespace

std::string rank_program() {
  refuse_little_memory();
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string file = self.parent_path() / "trireme-rank";
  if (access(file.c_str(), X_OK) != 0)
    throw Error(
        fmt::format("this needs '{}', which does not exist; 'make build' makes it, and "
                    "'cmake --install build' puts both programs into one folder",
                    file));
  return file;
}

void become_rank(const std::vector<std::string>& args) {
  const std::string file = rank_program();
  std::vector<char*> argv{const_cast<char*>(file.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(file.c_str(), argv.data());
  throw Error(fmt::format("cannot start '{}': {}", file, core::errno_text(errno)));
}

int ask_rank(const std::vector<std::string>& args) {
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("cannot start a process: {}", core::errno_text(errno)));
  if (pid == 0) {
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, STDOUT_FILENO);
    try {
      become_rank(args);
    } catch (const std::exception&) {
    }
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool under_launcher() {
  return core::env("RANK") || core::env("OMPI_COMM_WORLD_RANK") || core::env("PMI_RANK") ||
         core::env("SLURM_PROCID");
}

}  // namespace trireme::cli
