#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/rank_program.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/launch/run.h"

namespace trireme::cli {

namespace {

constexpr const char* kShape = "comm [OPTIONS]";
constexpr const char* kFooter =
    "Prints a line such as\n"
    R"(  {"bench":"comm","op":"all_reduce","backend":"shm","ranks":2,"bytes":4096,"us":1.9,...})"
    "\nper op and size: the median over repetitions of the slowest rank, each after a barrier and "
    "on\n"
    "freshly written data; every timed result is also checked. It starts its own ranks, or takes\n"
    "those of the launcher that it runs under (trireme run, torchrun, mpirun).";

struct CommBench {
  std::string op = "all_reduce", backend = "auto", bytes, dtype = "float32", algorithm = "auto";
  int ranks = 2;
  int repeat = 0;  ///< 0: trireme-rank decides
  bool registered = false;
};

void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (std::ranges::find(allowed, value) == allowed.end())
    throw ConfigError(
        fmt::format("{} '{}' is none of {}", option, value, fmt::join(allowed, ", ")));
}

void check(const CommBench& bench) {
  require_one_of("--backend", bench.backend, {"auto", "shm", "tcp", "local"});
  require_one_of("--algorithm", bench.algorithm, {"auto", "oneshot", "direct", "ring", "tree"});
  if (bench.ranks < 1) throw ConfigError(fmt::format("--ranks {} is less than 1", bench.ranks));
  if (bench.repeat < 0) throw ConfigError(fmt::format("--repeat {} is negative", bench.repeat));
  std::istringstream sizes(bench.bytes);
  for (std::string size; std::getline(sizes, size, ',');)
    if (!core::parse_bytes(size))
      throw ConfigError(fmt::format("--bytes '{}': '{}' is not a size such as 4096, 4K or 1M",
                                    bench.bytes, size));
}

CommBench parse(const std::vector<std::string>& args) {
  CommBench bench;
  Arguments arguments("trireme bench", "Times collectives between ranks on this host.");
  arguments.usage(kShape);
  arguments.footer(kFooter);
  arguments.value("--op", bench.op, "all_reduce, all_gather, reduce_scatter, ...; several: a,b");
  arguments.value("--backend", bench.backend, "auto, shm, tcp, or local (threads of one process)");
  arguments.value("--ranks", bench.ranks, "how many (2)");
  arguments.value("--bytes", bench.bytes, "sizes, as in 8,4K,1M");
  arguments.value("--dtype", bench.dtype, "float32, float64, float16, bfloat16, int32, ...");
  arguments.value("--repeat", bench.repeat, "repetitions per size (enough for a steady median)");
  arguments.flag("--registered", bench.registered, "tensors in memory that all ranks have mapped");
  arguments.value("--algorithm", bench.algorithm, "auto, oneshot, direct, ring, tree");
  const bool named = !args.empty() && args[0] == "comm";
  arguments.parse(named ? std::vector(args.begin() + 1, args.end()) : args);
  if (!named) throw ConfigError("say what to measure: 'trireme bench comm'");
  check(bench);
  return bench;
}

std::vector<std::string> rank_arguments(const CommBench& bench) {
  std::vector<std::string> args{"bench-comm",
                                "--op",
                                bench.op,
                                "--backend",
                                bench.backend,
                                "--ranks",
                                fmt::format("{}", bench.ranks),
                                "--dtype",
                                bench.dtype,
                                "--algorithm",
                                bench.algorithm};
  if (!bench.bytes.empty()) args.insert(args.end(), {"--bytes", bench.bytes});
  if (bench.repeat > 0) args.insert(args.end(), {"--repeat", fmt::format("{}", bench.repeat)});
  if (bench.registered) args.push_back("--registered");
  return args;
}

bool under_launcher() {
  return core::env("RANK") || core::env("OMPI_COMM_WORLD_RANK") || core::env("PMI_RANK") ||
         core::env("SLURM_PROCID");
}

}  // namespace

int bench_command(const std::vector<std::string>& args) {
  const CommBench bench = parse(args);
  std::vector<std::string> command = rank_arguments(bench);
  if (under_launcher()) become_rank(command);
  command.insert(command.begin(), rank_program());
  return launch::run({.command = command,
                      .num_ranks = bench.backend == "local" ? 1 : bench.ranks,
                      .display = launch::Display::Bare,
                      .speaker = "trireme bench"});
}

}  // namespace trireme::cli
