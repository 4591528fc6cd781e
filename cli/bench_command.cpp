#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/rank_program.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/launch/run.h"

namespace trireme::cli {

namespace {

constexpr const char* kShape =
    "comm [OPTIONS] | train CONFIG [KEY=VALUE]... | checkpoint --dir FOLDER [OPTIONS]";
constexpr const char* kBenchFooter =
    "  trireme bench comm --ranks 2\n"
    "  trireme bench comm --ranks 2 --op all_gather,broadcast --bytes 4K,1M\n"
    "  trireme bench train configs/gpt-small.toml run.steps=20\n"
    "  trireme bench checkpoint --dir /tmp --bytes 64M\n\n"
    "'comm' prints a line such as\n"
    R"(  {"bench":"comm","op":"all_reduce","backend":"shm","ranks":2,"bytes":4096,"us":1.9,...})"
    "\nper op and size: the median over repetitions of the slowest rank, each after a barrier and "
    "on\n"
    "freshly written data; every timed result is also checked. It starts its own ranks, or takes\n"
    "those of the launcher that it runs under (trireme run, torchrun, mpirun).\n\n"
    "'train' takes a configuration, warms up, times steps on ready batches and prints one line:\n"
    R"(  {"bench":"train","ranks":2,"tokens_per_s":4760.1,"step_ms":430.2,"pss_mib":390,...})"
    "\n\n'checkpoint' saves --bytes (1G) of state from --ranks ranks, and loads it as other meshes "
    "do,\nbeside just reading the files:\n"
    R"(  {"bench":"checkpoint","what":"save","ranks":2,"bytes":1073741824,"copy_ms":210,"ms":1900})";

constexpr int kEnough = std::numeric_limits<int>::max();  ///< trireme-rank chooses

struct CommBench {
  std::string op = "all_reduce", backend = "auto", bytes = "8,4K,64K,1M,16M,64M", dtype = "float32",
              algorithm = "auto";
  int ranks = 2;
  int repeat = kEnough;
  bool registered = false;
};

void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (std::ranges::find(allowed, value) == allowed.end())
    throw ConfigError(
        fmt::format("{} '{}' is none of {}", option, value, fmt::join(allowed, ", ")));
}

/// MemAvailable of the kernel; nothing where it does not report it.
std::optional<int64_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kib) == 1) return kib << 10;
  }
  return std::nullopt;
}

const std::vector<std::string> kOps = {"all_reduce",     "broadcast",  "reduce", "all_gather",
                                       "reduce_scatter", "all_to_all", "barrier"};
const std::vector<std::string> kBackends = {"auto", "shm", "tcp", "nccl", "local"};
const std::vector<std::string> kDtypes = {"float32", "float64", "float16", "bfloat16",
                                          "int32",   "int64",   "uint8"};
const std::vector<std::string> kAlgorithms = {"auto", "oneshot", "direct", "ring", "tree"};

void check_bench(const CommBench& bench) {
  require_one_of("--backend", bench.backend, kBackends);
  require_one_of("--dtype", bench.dtype, kDtypes);
  require_one_of("--algorithm", bench.algorithm, kAlgorithms);
  if (bench.ranks < 1) throw ConfigError(fmt::format("--ranks {} is less than 1", bench.ranks));
  if (bench.repeat < 1) throw ConfigError(fmt::format("--repeat {} is less than 1", bench.repeat));
  const auto each = [](const char* option, const std::string& list, const auto& check_one) {
    if (list.empty()) throw ConfigError(fmt::format("{} is empty", option));
    std::istringstream items(list);
    for (std::string item; std::getline(items, item, ',');) check_one(item);
  };
  each("--op", bench.op, [](const std::string& op) { require_one_of("--op", op, kOps); });
  each("--bytes", bench.bytes, [&](const std::string& size) {
    const auto bytes = core::parse_bytes(size);
    if (!bytes)
      throw ConfigError(fmt::format("--bytes '{}': '{}' is not a size such as 4096, 4K or 1M",
                                    bench.bytes, size));
    // Input, output, the expected result and a temporary: at least four buffers at a time.
    const auto memory = available_memory();
    if (memory && static_cast<double>(*bytes) * 4 * bench.ranks > static_cast<double>(*memory))
      throw ConfigError(fmt::format("--bytes {} on {} ranks needs more than {}; {} are free here",
                                    size, bench.ranks, core::format_bytes(4 * *bytes * bench.ranks),
                                    core::format_bytes(*memory)));
  });
}

CommBench parse_comm_bench(const std::vector<std::string>& args) {
  CommBench bench;
  Arguments arguments("trireme bench", "Times collectives between ranks on this host.");
  arguments.usage(kShape);
  arguments.footer(kBenchFooter);
  arguments.actions({"comm", "train", "checkpoint"});
  arguments.value("--op", bench.op, "all_reduce, all_gather, reduce_scatter, ...; several: a,b");
  arguments.value("--backend", bench.backend,
                  "auto, shm, tcp, nccl (tensors on GPUs), or local (threads)");
  arguments.value("--ranks", bench.ranks, "how many (2)");
  arguments.value("--bytes", bench.bytes, "sizes, as in 8,4K,1M");
  arguments.value("--dtype", bench.dtype, "float32, float64, float16, bfloat16, int32, ...");
  arguments.value("--repeat", bench.repeat, "repetitions per size (enough for a steady median)");
  arguments.flag("--registered", bench.registered, "tensors in memory that all ranks have mapped");
  arguments.value("--algorithm", bench.algorithm, "auto, oneshot, direct, ring, tree");
  arguments.words("--op", kOps);
  arguments.words("--backend", kBackends);
  arguments.words("--dtype", kDtypes);
  arguments.words("--algorithm", kAlgorithms);
  const bool named = !args.empty() && args[0] == "comm";
  arguments.parse(
      args.empty() || args[0].starts_with("-") ? args : std::vector(args.begin() + 1, args.end()));
  if (!named)
    throw ConfigError(
        "no benchmark was named: use 'trireme bench comm', 'bench train' or 'bench checkpoint'");
  check_bench(bench);
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
  args.insert(args.end(), {"--bytes", bench.bytes});
  if (bench.repeat != kEnough)
    args.insert(args.end(), {"--repeat", fmt::format("{}", bench.repeat)});
  if (bench.registered) args.push_back("--registered");
  return args;
}

constexpr int64_t kLeastBytes = 32 << 20;  // one tensor

int bench_checkpoint_command(const std::vector<std::string>& args) {
  std::string folder, bytes = "1G";
  int ranks = 2, repeat = 3;
  Arguments arguments("trireme bench checkpoint", "Times saving and loading of checkpoints.");
  arguments.value("--dir", folder,
                  "where to write: makes a folder there and removes it at the end");
  arguments.value("--bytes", bytes, "size of the whole state (1G), 32M or more");
  arguments.value("--ranks", ranks, "how many (2)");
  arguments.value("--repeat", repeat, "repetitions (3)");
  arguments.parse(args);
  if (folder.empty()) throw ConfigError("bench checkpoint needs --dir FOLDER to write to");
  // A folder of its own, so that existing checkpoints are not touched.
  folder += fmt::format("/bench-checkpoint-{}", ::getpid());
  const auto size = core::parse_bytes(bytes);
  if (!size) throw ConfigError(fmt::format("--bytes '{}' is not a size such as 512M", bytes));
  if (ranks < 1 || repeat < 1)
    throw ConfigError(fmt::format("--ranks {} --repeat {}: both must be 1 or more", ranks, repeat));
  if (*size < kLeastBytes)
    throw ConfigError(fmt::format("--bytes {}: it must be 32M or more", bytes));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("--dir: cannot make {}: {}", folder, error.message()));
  const int code = launch::run({.command = {rank_program(), "bench-checkpoint", folder,
                                            fmt::format("{}", *size), fmt::format("{}", repeat)},
                                .num_ranks = ranks,
                                .display = launch::Display::Bare,
                                .speaker = "trireme bench"});
  std::filesystem::remove_all(folder, error);
  return code;
}

}  // namespace

int bench_command(const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "checkpoint")
    return bench_checkpoint_command({args.begin() + 1, args.end()});
  const bool helps = std::ranges::any_of(
      args, [](const std::string& word) { return word == "--help" || word == "-h"; });
  if (!args.empty() && args[0] == "train" && !helps)
    return train_ranks({"bench-train"}, {args.begin() + 1, args.end()}, "trireme bench");
  const CommBench bench = parse_comm_bench(args);
  std::vector<std::string> command = rank_arguments(bench);
  if (under_launcher()) become_rank(command);
  command.insert(command.begin(), rank_program());
  return launch::run({.command = command,
                      .num_ranks = bench.backend == "local" ? 1 : bench.ranks,
                      .display = launch::Display::Bare,
                      .speaker = "trireme bench"});
}

}  // namespace trireme::cli
