// What does Communicator::all_reduce cost beside a bare ncclAllReduce? Both work on the same
// buffer, with the same library, in turns. A JSON line per size: medians of the slowest rank, and
// their ratio.
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
#include <functional>
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

/// Runs it and returns how many us until the GPU was done.
double time_us(const comm::Communicator& world, const at::Tensor& data,
               const std::function<void()>& run) {
  (void)data.slice(0, 0, 1).cpu();
  world.barrier();
  const auto begin = Clock::now();
  run();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// Waits as DeviceOp::synchronize does, so that only the rest differs.
void wait_for(const c10::Stream& stream) {
  c10::Event done(c10::kCUDA);
  done.record(stream);
  while (!done.query()) std::this_thread::yield();
}

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
  const auto run_bare = [&] {
    nccl.check("ncclAllReduce", nccl.all_reduce(data.data_ptr(), data.data_ptr(),
                                                static_cast<std::size_t>(count), Library::kFloat32,
                                                Library::kSum, bare.comm, stream.native_handle()));
    wait_for(stream);
  };
  const auto run_ours = [&] { world.all_reduce(data).synchronize(); };
  const int repeats = bytes <= (1 << 20) ? 1000 : 100;
  std::vector<double> bare_us, our_us;
  auto slowest = at::zeros({2}, at::kDouble);
  for (int repeat = -20; repeat < repeats; ++repeat) {
    data.fill_(world.rank() + 1.0F);
    slowest[0] = time_us(world, data, run_bare);
    const float one = data[count - 1].item<float>();
    data.fill_(world.rank() + 1.0F);
    slowest[1] = time_us(world, data, run_ours);
    const float other = data[count - 1].item<float>();
    const auto expected = static_cast<float>(world.size() * (world.size() + 1)) / 2;
    if (one != expected || other != expected)
      throw Error(fmt::format("a wrong sum: {} and {} instead of {}", one, other, expected));
    world.all_reduce(slowest, comm::ReduceOp::Max).wait();
    if (repeat < 0) continue;
    bare_us.push_back(slowest[0].item<double>());
    our_us.push_back(slowest[1].item<double>());
  }
  if (world.rank() != 0) return;
  const double theirs = median(bare_us), ours = median(our_us);
  fmt::print("{}\n", core::Json{{"bench", "against_nccl"},
                                {"nccl", comm::nccl::version_text(nccl.version)},
                                {"ranks", world.size()},
                                {"bytes", bytes},
                                {"bare_us", theirs},
                                {"us", ours},
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
