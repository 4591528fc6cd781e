// What does Communicator::all_reduce cost beside a bare ncclAllReduce? Both work on the same
// buffer, with the same library, in turns. A JSON line per size: medians of the slowest rank, until
// the call returns and until the GPU is done, and the ratio of the latter.
//
//   trireme run -n gpu build/bin/against_nccl
//   TRIREME_NCCL_LIBRARY=.../libnccl.so.2 trireme run -n 2 build/bin/against_nccl 4096 67108864
#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "trireme/comm/nccl/gpu.h"
#include "trireme/comm/nccl/library.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/trireme.h"

namespace {

using namespace trireme;
using comm::nccl::Library;
using Clock = std::chrono::steady_clock;

/// A communicator of NCCL as any program makes one.
struct BareCommunicator {
  BareCommunicator(const comm::Communicator& world, c10::Device device) {
    const Library& nccl = Library::get();
    Library::UniqueId id{};
    auto bytes = at::zeros({static_cast<int64_t>(sizeof id)}, at::kByte);
    if (world.rank() == 0) {
      nccl.check("ncclGetUniqueId", nccl.unique_id(&id));
      std::memcpy(bytes.data_ptr(), &id, sizeof id);
    }
    world.broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.data_ptr(), sizeof id);
    const c10::DeviceGuard guard(device);
    comm::nccl::use_device(device);
    Library::Config config;
    config.blocking = 1;
    nccl.check("ncclCommInitRankConfig", nccl.init(&comm, world.size(), id, world.rank(), &config));
  }
  Library::Comm comm = nullptr;
};

/// How many us the host took to start it, and until the GPU was done.
struct Took {
  double start_us = 0, us = 0;
};

/// `start` returns what waits for the GPU.
template <class Start>
Took time(const comm::Communicator& world, const at::Tensor& data, const Start& start) {
  (void)data.slice(0, 0, 1).cpu();
  world.barrier();
  const auto since = [begin = Clock::now()] {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  auto started = start();
  Took took;
  took.start_us = since();
  started.synchronize();
  took.us = since();
  return took;
}

/// Waits as DeviceOp::synchronize does, so that only the rest differs.
struct BareWork {
  c10::Event done = c10::Event(c10::kCUDA);
  void synchronize() const {
    while (!done.query()) std::this_thread::yield();
  }
};

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

void compare(const comm::Communicator& world, const BareCommunicator& bare, c10::Device device,
             int64_t bytes) {
  const int64_t count = std::max<int64_t>(1, bytes / 4);
  const auto data = at::full({count}, 1.0F, at::TensorOptions().device(device).dtype(at::kFloat));
  const c10::Stream stream = comm::nccl::current_stream(device);
  const Library& nccl = Library::get();
  const auto start_bare = [&] {
    nccl.check("ncclAllReduce", nccl.all_reduce(data.data_ptr(), data.data_ptr(),
                                                static_cast<std::size_t>(count), Library::kFloat32,
                                                Library::kSum, bare.comm, stream.native_handle()));
    BareWork work;
    work.done.record(stream);
    return work;
  };
  const auto start_ours = [&] { return world.all_reduce(data); };
  const int repeats = bytes <= (1 << 20) ? 1000 : 100;
  std::vector<double> bare_us, our_us, bare_start_us, our_start_us;
  auto slowest = at::zeros({4}, at::kDouble);
  for (int repeat = -20; repeat < repeats; ++repeat) {
    data.fill_(world.rank() + 1.0F);
    const Took bare_took = time(world, data, start_bare);
    const float one = data[count - 1].item<float>();
    data.fill_(world.rank() + 1.0F);
    const Took our_took = time(world, data, start_ours);
    const float other = data[count - 1].item<float>();
    const auto expected = static_cast<float>(world.size() * (world.size() + 1)) / 2;
    if (one != expected || other != expected)
      throw Error(fmt::format("a wrong sum: {} and {} instead of {}", one, other, expected));
    slowest[0] = bare_took.us;
    slowest[1] = our_took.us;
    slowest[2] = bare_took.start_us;
    slowest[3] = our_took.start_us;
    world.all_reduce(slowest, comm::ReduceOp::Max).wait();
    if (repeat < 0) continue;
    bare_us.push_back(slowest[0].item<double>());
    our_us.push_back(slowest[1].item<double>());
    bare_start_us.push_back(slowest[2].item<double>());
    our_start_us.push_back(slowest[3].item<double>());
  }
  if (world.rank() != 0) return;
  const double theirs = median(bare_us), ours = median(our_us);
  fmt::print("{}\n", core::Json{{"bench", "against_nccl"},
                                {"nccl", comm::nccl::version_text(nccl.version)},
                                {"ranks", world.size()},
                                {"bytes", bytes},
                                {"bare_us", theirs},
                                {"us", ours},
                                {"bare_start_us", median(bare_start_us)},
                                {"start_us", median(our_start_us)},
                                {"cost", ours / theirs}}
                         .dump());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  InitOptions options;
  options.backend = "nccl";
  const auto world = init(options);
  const auto rank = static_cast<int>(core::env_int("LOCAL_RANK").value_or(world.rank()));
  const c10::Device device = comm::nccl::own_device(rank).value();
  const BareCommunicator bare(world, device);
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::stoll(argv[i]));
  if (sizes.empty()) sizes = {4096, 64 << 20};
  for (const int64_t bytes : sizes) compare(world, bare, device, bytes);
  world.barrier();
  return 0;
}
