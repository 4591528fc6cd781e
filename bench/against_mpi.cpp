// How do our collectives compare with MPI's? Both run in the same processes and take turns, each on
// freshly written data after a barrier. Times are medians of the slowest rank; every result is
// checked.
//
//   mpirun -n 2 build/bin/against_mpi [--op all_reduce] [--backend shm] [--bytes 8,4096,...]
//   [--rounds N]
//
// Prints one JSON object per size: microseconds of MPI, of ours on private and on registered
// memory, and the ratios MPI / ours.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/trireme.h"

using namespace trireme;
using Clock = std::chrono::steady_clock;

namespace {

struct Options {
  std::string op = "all_reduce", backend = "shm";
  std::vector<int64_t> bytes = {8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};
  int rounds = 0;
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--op") options.op = value;
    if (name == "--backend") options.backend = value;
    if (name == "--rounds") options.rounds = std::stoi(value);
    if (name == "--bytes") {
      options.bytes.clear();
      for (std::size_t at = 0; at < value.size();) {
        const auto comma = std::min(value.find(',', at), value.size());
        options.bytes.push_back(std::stoll(value.substr(at, comma - at)));
        at = comma + 1;
      }
    }
  }
  return options;
}

/// A world of the ranks that mpirun started, meeting through a file.
comm::Communicator join(const std::string& backend) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char path[] = "/tmp/trireme-bench-XXXXXX";
  if (rank == 0 && ::mkdtemp(path) == nullptr) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  ::setenv("TRIREME_BACKEND", backend.c_str(), 1);
  ::setenv("TRIREME_SECRET", path, 1);
  auto world = init("file://" + std::string(path) + "/store?rank=" + std::to_string(rank) +
                    "&size=" + std::to_string(size));
  if (rank == 0) ::rmdir(path);
  return world;
}

/// One way of doing the operation: the tensor to fill before, the call, and the tensor to check.
struct Way {
  std::string name;
  torch::Tensor in, out;
  std::function<void()> run;
};

torch::Tensor pattern(int64_t count, int shift) {
  return torch::arange(count, torch::kLong).add(shift).remainder(13).to(torch::kFloat);
}

std::vector<Way> make_ways(const Options& options, const comm::Communicator& world, int64_t bytes) {
  const int n = world.size();
  const int64_t count = std::max<int64_t>(1, bytes / 4), part = std::max<int64_t>(1, count / n);
  std::vector<Way> ways;
  for (const std::string name : {"mpi", "private", "registered"}) {
    if (name == "registered" && options.backend == "tcp") continue;
    const auto make = [&](int64_t size) {
      return name == "registered" ? world.allocate({size}, torch::kFloat) : torch::zeros({size});
    };
    Way way{name, {}, {}, {}};
    const bool mpi = name == "mpi";
    if (options.op == "all_reduce") {
      way.in = way.out = make(count);
      auto* data = way.out.data_ptr<float>();
      way.run = mpi ? std::function<void()>([=] {
        MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      })
                    : [=, &world, t = way.out] { world.all_reduce(t).wait(); };
    } else if (options.op == "reduce_scatter") {
      way.in = make(part * n);
      way.out = make(part);
      auto *in = way.in.data_ptr<float>(), *out = way.out.data_ptr<float>();
      way.run = mpi ? std::function<void()>([=] {
        MPI_Reduce_scatter_block(in, out, static_cast<int>(part), MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD);
      })
                    : [=, &world, o = way.out, i = way.in] { world.reduce_scatter(o, i).wait(); };
    } else {  // all_gather, in place as users of either would
      way.out = make(part * n);
      way.in = way.out.slice(0, world.rank() * part, (world.rank() + 1) * part);
      auto* out = way.out.data_ptr<float>();
      way.run = mpi ? std::function<void()>([=] {
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, out, static_cast<int>(part), MPI_FLOAT,
                      MPI_COMM_WORLD);
      })
                    : [=, &world, o = way.out, i = way.in] { world.all_gather(o, i).wait(); };
    }
    ways.push_back(std::move(way));
  }
  return ways;
}

torch::Tensor expected_of(const std::string& op, const comm::Communicator& world, const Way& way) {
  const int n = world.size();
  if (op == "all_gather") {
    std::vector<torch::Tensor> parts;
    for (int rank = 0; rank < n; ++rank) parts.push_back(pattern(way.in.numel(), rank));
    return torch::cat(parts);
  }
  auto sum = torch::zeros({way.in.numel()});
  for (int rank = 0; rank < n; ++rank) sum += pattern(way.in.numel(), rank);
  if (op == "reduce_scatter")
    return sum.slice(0, world.rank() * way.out.numel(), (world.rank() + 1) * way.out.numel())
        .contiguous();
  return sum;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void compare(const Options& options, const comm::Communicator& world, int64_t bytes) {
  auto ways = make_ways(options, world, bytes);
  const auto input = pattern(ways.front().in.numel(), world.rank());
  const auto expected = expected_of(options.op, world, ways.front());
  std::vector<std::vector<double>> times(ways.size());
  auto slowest = torch::zeros({1}, torch::kDouble);
  const int rounds = options.rounds > 0   ? options.rounds
                     : bytes <= 65536     ? 801
                     : bytes <= (4 << 20) ? 101
                                          : 21;
  for (int round = -5; round < rounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t turn = (i + static_cast<std::size_t>(round + 5)) % ways.size();
      Way& way = ways[turn];
      way.in.copy_(input);
      world.barrier();
      const auto begin = Clock::now();
      way.run();
      slowest.fill_(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
      world.barrier();  // checking takes a core: wait until all ranks are done
      if (!way.out.equal(expected)) {
        std::fprintf(stderr, "rank %d: %s by %s is wrong\n", world.rank(), options.op.c_str(),
                     way.name.c_str());
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      world.all_reduce(slowest, comm::ReduceOp::Max).wait();
      if (round >= 0) times[turn].push_back(slowest.item<double>());
    }
  }
  if (world.rank() != 0) return;
  core::Json line = {{"bench", "against_mpi"},
                     {"op", options.op},
                     {"backend", options.backend},
                     {"ranks", world.size()},
                     {"bytes", bytes}};
  for (std::size_t i = 0; i < ways.size(); ++i)
    line[ways[i].name + "_us"] = std::round(median(times[i]) * 100) / 100;
  for (std::size_t i = 1; i < ways.size(); ++i)
    line[ways[i].name + "_ratio"] = std::round(median(times[0]) / median(times[i]) * 100) / 100;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  torch::set_num_threads(1);
  {
    const Options options = read_options(argc, argv);
    const auto world = join(options.backend);
    for (int64_t bytes : options.bytes) compare(options, world, bytes);
  }
  MPI_Finalize();
}
