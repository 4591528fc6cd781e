#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "cli/arguments.h"
#include "cli/rank_commands.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/local/local.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/core/units.h"
#include "trireme/mesh/init.h"

namespace trireme::cli {

namespace {

using comm::Algorithm;
using comm::Communicator;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> ops;
  std::vector<int64_t> bytes;
  std::string backend = "auto", dtype = "float32", algorithm = "auto";
  int ranks = 2, repeat = 0;
  bool registered = false;
  at::Device device = at::kCPU;  ///< of the tensors: with nccl the GPU of this rank
};

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> out;
  std::size_t at = 0;
  while (at <= list.size()) {
    const auto comma = std::min(list.find(',', at), list.size());
    if (comma > at) out.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

template <class T>
T one_of(const std::map<std::string, T>& choices, const std::string& word, const char* what) {
  const auto found = choices.find(word);
  if (found != choices.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : choices) known += (known.empty() ? "" : ", ") + name;
  throw ConfigError(fmt::format("{} '{}' is none of {}", what, word, known));
}

at::ScalarType dtype_of(const std::string& name) {
  return one_of<at::ScalarType>({{"float32", at::kFloat},
                                 {"float64", at::kDouble},
                                 {"float16", at::kHalf},
                                 {"bfloat16", at::kBFloat16},
                                 {"int32", at::kInt},
                                 {"int64", at::kLong},
                                 {"uint8", at::kByte}},
                                name, "--dtype");
}

Algorithm algorithm_of(const std::string& name) {
  return one_of<Algorithm>({{"auto", Algorithm::Auto},
                            {"oneshot", Algorithm::OneShot},
                            {"direct", Algorithm::Direct},
                            {"ring", Algorithm::Ring},
                            {"tree", Algorithm::Tree}},
                           name, "--algorithm");
}

/// One operation with its buffers, how to run it, and how to check the result. Values are small
/// whole numbers that differ by rank and index, exact in every dtype.
struct Case {
  at::Tensor in, out;
  std::function<void()> run;
  std::function<bool()> right;
  double bus = 1;  ///< bytes over the slowest link for each byte of the operation
};

at::Tensor pattern(int64_t count, at::TensorOptions type, int shift) {
  return at::arange(count, type.dtype(at::kLong)).add(shift).remainder(7).to(type.dtype());
}

/// The GPU of this rank: that of its number on this host.
at::Device own_gpu() {
  const auto gpus = static_cast<int64_t>(at::detail::getCUDAHooks().deviceCount());
  if (!at::hasCUDA() || gpus == 0)
    throw ConfigError("--backend nccl: this libtorch has no CUDA, or the machine no GPU");
  const int64_t rank = core::env_int("LOCAL_RANK").value_or(0);
  return {at::kCUDA, static_cast<at::DeviceIndex>(rank % gpus)};
}

/// Returns when the GPU has done all that was asked of it so far. Reading an element back waits.
void finish(const at::Tensor& tensor) {
  if (tensor.is_cuda()) (void)tensor.flatten().slice(0, 0, 1).cpu();
}

Case make_case(const std::string& op, const Communicator& world, const Options& options,
               int64_t bytes) {
  const auto dtype = at::TensorOptions().dtype(dtype_of(options.dtype)).device(options.device);
  const Algorithm algorithm = algorithm_of(options.algorithm);
  const int n = world.size(), rank = world.rank();
  const auto item = static_cast<int64_t>(c10::elementSize(dtype_of(options.dtype)));
  const int64_t count = std::max<int64_t>(1, bytes / item), part = std::max<int64_t>(1, count / n),
                whole = part * n;
  const auto make = [&](int64_t size) {
    return options.registered ? world.allocate({size}, dtype) : at::zeros({size}, dtype);
  };
  // The sum over ranks of pattern(shift = rank).
  const auto sum = [=](int64_t size) {
    auto total = at::zeros({size}, dtype);
    for (int r = 0; r < n; ++r) total.add_(pattern(size, dtype, r));
    return total;
  };
  Case c;
  const double share = static_cast<double>(n - 1) / n;
  if (op == "all_reduce" || op == "broadcast" || op == "reduce") {
    c.in = c.out = make(count);
    c.bus = op == "all_reduce" ? 2 * share : 1;
    if (op == "all_reduce")
      c.run = [=, &world] {
        world.all_reduce(c.out, comm::ReduceOp::Sum, algorithm).synchronize();
      };
    if (op == "broadcast")
      c.run = [=, &world] { world.broadcast(c.out, 0, algorithm).synchronize(); };
    if (op == "reduce")
      c.run = [=, &world] { world.reduce(c.out, 0, comm::ReduceOp::Sum, algorithm).synchronize(); };
    const auto expected = op == "broadcast"             ? pattern(count, dtype, 0)
                          : op == "reduce" && rank != 0 ? pattern(count, dtype, rank)
                                                        : sum(count);
    c.right = [=] { return c.out.equal(expected); };
  } else if (op == "all_gather") {
    c.in = make(part);
    c.out = make(whole);
    c.bus = share;
    c.run = [=, &world] { world.all_gather(c.out, c.in, {}, algorithm).synchronize(); };
    c.right = [=] {
      bool right = true;
      for (int r = 0; r < n; ++r)
        right &= c.out.slice(0, r * part, (r + 1) * part).equal(pattern(part, dtype, r));
      return right;
    };
  } else if (op == "reduce_scatter") {
    c.in = make(whole);
    c.out = make(part);
    c.bus = share;
    c.run = [=, &world] {
      world.reduce_scatter(c.out, c.in, comm::ReduceOp::Sum, {}, algorithm).synchronize();
    };
    const auto expected = sum(whole).slice(0, rank * part, (rank + 1) * part).contiguous();
    c.right = [=] { return c.out.equal(expected); };
  } else if (op == "all_to_all") {
    c.in = make(whole);
    c.out = make(whole);
    c.bus = share;
    c.run = [=, &world] { world.all_to_all(c.out, c.in).synchronize(); };
    c.right = [=] {
      bool right = true;
      for (int r = 0; r < n; ++r)
        right &= c.out.slice(0, r * part, (r + 1) * part)
                     .equal(pattern(whole, dtype, r).slice(0, rank * part, (rank + 1) * part));
      return right;
    };
  } else if (op == "barrier") {
    c.in = c.out = at::zeros({1});
    c.run = [&world] { world.barrier(); };
    c.right = [] { return true; };
  } else {
    throw ConfigError(
        fmt::format("--op '{}' is none of all_reduce, broadcast, reduce, all_gather, "
                    "reduce_scatter, all_to_all, barrier",
                    op));
  }
  return c;
}

int repeats(const Options& options, int64_t bytes) {
  if (options.repeat > 0) return options.repeat;
  return bytes <= 65536 ? 1000 : bytes <= (4 << 20) ? 100 : 20;
}

/// The median over repetitions of the slowest rank, each on freshly written data after a barrier.
void time_case(const std::string& op, const Communicator& world, const Options& options,
               int64_t bytes) {
  Case c = make_case(op, world, options, bytes);
  const auto input = pattern(c.in.numel(), c.in.options(), world.rank());
  std::vector<double> times;
  auto slowest = at::zeros({1}, at::kDouble);
  for (int repeat = -5; repeat < repeats(options, bytes); ++repeat) {
    c.in.copy_(input);
    finish(c.in);
    world.barrier();
    const auto begin = Clock::now();
    c.run();
    slowest.fill_(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    world.barrier();  // checking takes a core, so it waits until all ranks are done
    if (!c.right())
      throw Error(
          fmt::format("{} of {} bytes gave a wrong result on rank {}", op, bytes, world.rank()));
    world.all_reduce(slowest, comm::ReduceOp::Max).wait();
    if (repeat >= 0) times.push_back(slowest.item<double>());
  }
  if (world.rank() != 0) return;
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  const double us = times[times.size() / 2], gb_s = static_cast<double>(bytes) / us / 1e3;
  const auto rounded = [](double value) { return std::round(value * 1000) / 1000; };
  core::Json line = {{"bench", "comm"},
                     {"op", op},
                     {"backend", world.backend()},
                     {"ranks", world.size()},
                     {"bytes", bytes},
                     {"us", rounded(us)},
                     {"gb_s", rounded(gb_s)},
                     {"bus_gb_s", rounded(gb_s * c.bus)},
                     {"registered", options.registered},
                     {"dtype", options.dtype},
                     {"algorithm", options.algorithm}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void time_all(const Communicator& world, const Options& options) {
  for (const std::string& op : options.ops) {
    for (int64_t bytes : options.bytes) time_case(op, world, options, bytes);
  }
}

Options read_options(const std::vector<std::string>& args) {
  Options options;
  std::string ops = "all_reduce", bytes = "8,4K,64K,1M,16M,64M";
  Arguments arguments("trireme-rank bench-comm", "Times collectives, each result checked.");
  arguments.value("--op", ops, "operations, comma-separated");
  arguments.value("--backend", options.backend, "auto, shm, tcp, nccl or local");
  arguments.value("--ranks", options.ranks, "how many (for local; else the launcher says)");
  arguments.value("--bytes", bytes, "sizes, comma-separated: 8,4K,1M");
  arguments.value("--dtype", options.dtype, "element type");
  arguments.value("--algorithm", options.algorithm, "auto, oneshot, direct, ring or tree");
  arguments.value("--repeat", options.repeat, "repetitions per size");
  arguments.flag("--registered", options.registered,
                 "buffers that all ranks of the host have mapped");
  arguments.parse(args);
  options.ops = words(ops);
  for (const std::string& size : words(bytes)) {
    const auto parsed = core::parse_bytes(size);
    if (!parsed)
      throw ConfigError(fmt::format("--bytes '{}' is not a size such as 4096, 4K or 1M", size));
    options.bytes.push_back(*parsed);
  }
  dtype_of(options.dtype);
  algorithm_of(options.algorithm);
  return options;
}

}  // namespace

int bench_comm(const std::vector<std::string>& args) {
  Options options = read_options(args);
  at::set_num_threads(1);
  if (options.backend == "local") {
    const auto hub = comm::make_local_hub(options.ranks);
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(options.ranks));
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < options.ranks; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          time_all(Communicator("world", comm::make_local(hub, rank)), options);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
    ranks.clear();
    for (const auto& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    return 0;
  }
  if (options.backend == "nccl") options.device = own_gpu();
  InitOptions how;
  if (options.backend != "auto") how.backend = options.backend;
  time_all(init(how), options);
  return 0;
}

}  // namespace trireme::cli
