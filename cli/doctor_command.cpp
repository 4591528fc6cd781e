#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/rank_program.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/launch/machine.h"
#include "trireme/launch/run.h"
#include "trireme/launch/spawn.h"

namespace trireme::cli {

namespace {

constexpr int64_t kLeastShm = 64 * core::kMiB;

void fact(const std::string& name, const std::string& what) {
  fmt::print("{:<22}{}\n", name, what);
}

void bad(const std::string& what) {
  fmt::print("{:<22}{}\n", "  PROBLEM", what);
}

std::string limit(int resource, bool bytes) {
  rlimit value{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &value) != 0) return "unknown";
  if (value.rlim_cur == RLIM_INFINITY) return "unlimited";
  return bytes ? core::format_bytes(static_cast<int64_t>(value.rlim_cur))
               : fmt::format("{}", value.rlim_cur);
}

std::string where(const std::string& program) {
  try {
    return launch::find_program(program);
  } catch (const launch::StartError&) {
    return "not found (not needed)";
  }
}

void report_shm() {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    fact("/dev/shm", "not there (not needed: segments have no names)");
    return;
  }
  const auto unit = static_cast<int64_t>(info.f_frsize);
  const int64_t size = unit * static_cast<int64_t>(info.f_blocks);
  const int64_t left = unit * static_cast<int64_t>(info.f_bavail);
  fact("/dev/shm", fmt::format("{}, {} free", core::format_bytes(size), core::format_bytes(left)));
  if (size < kLeastShm)
    fact("", "enough for Trireme, but Open MPI and NCCL need more; in a container: --shm-size=1g");
}

void report_machine() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  fact("host", launch::host_name());
  fact("cores", fmt::format("{}", launch::num_cores()));
  fact("memory", core::format_bytes(page * sysconf(_SC_PHYS_PAGES)));
  report_shm();
  fact("open files", limit(RLIMIT_NOFILE, false));
  fact("locked memory", limit(RLIMIT_MEMLOCK, true));
  fact("processes", limit(RLIMIT_NPROC, false));
  fact("mpirun", where("mpirun"));
  fact("NVIDIA devices", fmt::format("{}", launch::num_gpus()));
  std::fflush(stdout);
}

/// Runs trireme-rank with `what`, and prints the remedy if it fails.
bool try_ranks(const std::string& what, int num_ranks, const std::string& remedy) {
  const int code = launch::run({.command = {rank_program(), what},
                                .num_ranks = num_ranks,
                                .display = launch::Display::Bare,
                                .speaker = "trireme doctor"});
  if (code != 0) bad(fmt::format("'trireme-rank {}' ended with code {}; {}", what, code, remedy));
  return code == 0;
}

}  // namespace

int doctor_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme doctor",
                      "Reports what this machine has, its GPUs and their libraries included, and "
                      "runs an\nall-reduce between two ranks, with a GPU also of tensors there.\n"
                      "Exits non-zero, with the remedy, if something needed is broken.");
  arguments.parse(args);
  report_machine();
  const bool torch_loads = try_ranks("doctor", 1,
                                     "the lines above name the cause; if libtorch does not load: "
                                     "scripts/setup, then 'make build'");
  if (!torch_loads) return 1;
  const bool ranks_communicate =
      try_ranks("doctor-ranks", 2,
                "two ranks cannot communicate on this host: the lines above name the cause; "
                "try TRIREME_BACKEND=tcp to see whether only shared memory is affected");
  if (!ranks_communicate) return 1;
  // Loading libtorch takes a while: not again where there is no GPU.
  const bool gpus_communicate =
      launch::num_gpus() == 0 ||
      try_ranks("doctor-gpu-ranks", 2,
                "two ranks communicate, but not with tensors on the GPU: the lines above name the "
                "cause; TRIREME_BACKEND=shm leaves out NCCL, run.device=cpu the GPU");
  if (!gpus_communicate) return 1;
  fact("all is well", "two ranks met and added their numbers");
  return 0;
}

}  // namespace trireme::cli
