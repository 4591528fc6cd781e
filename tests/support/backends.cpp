#include "support/backends.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <ATen/Parallel.h>

#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#include "support/run_ranks.h"
#include "support/through_gpu.h"
#include "trireme/comm/local/local.h"
#include "trireme/core/env.h"
#include "trireme/mesh/init.h"

namespace trireme::test {

namespace {

/// The worlds of thread ranks, by name: the first rank that comes makes the hub.
class LocalWorlds {
 public:
  explicit LocalWorlds(int size) : size_(size) {}

  comm::Communicator join(const std::string& name, int rank) {
    std::shared_ptr<comm::LocalHub> hub;
    {
      const std::lock_guard lock(mutex_);
      auto& place = hubs_[name];
      if (!place) place = comm::make_local_hub(size_);
      hub = place;
    }
    auto backend = comm::make_local(hub, rank, {.record_dir = core::env("TRIREME_RECORD_DIR")});
    const std::lock_guard lock(mutex_);
    joined_.push_back(backend);
    return {name, std::move(backend)};
  }

  /// A rank is lost: let nobody wait for it.
  void abort(const std::string& why) {
    const std::lock_guard lock(mutex_);
    for (const auto& joined : joined_) {
      if (const auto backend = joined.lock()) backend->abort(why);
    }
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<comm::LocalHub>> hubs_;
  std::vector<std::weak_ptr<comm::Backend>>
      joined_;  ///< a rank leaves its world when its body does
};

using Body = std::function<void(int rank, const Join& join)>;

void run_threads(int size, const Body& body, const WorldOptions& options) {
  at::set_num_threads(1);
  LocalWorlds worlds(size);
  std::mutex mutex;
  std::condition_variable ended;
  int running = size;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      const Join join = [&, rank](const std::string& name) {
        auto world = worlds.join(name, rank);
        world.set_timeout(options.op_timeout);
        return world;
      };
      try {
        body(rank, join);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " of " << size << " threw: " << error.what();
        worlds.abort(fmt::format("rank {} threw", rank));
      }
      const std::lock_guard lock(mutex);
      --running;
      ended.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  const auto all = [&] { return running == 0; };
  if (ended.wait_for(lock, options.deadline, all)) return;
  ADD_FAILURE() << running << " of " << size << " ranks missed the deadline";
  worlds.abort("the test's deadline passed");
  if (ended.wait_for(lock, std::chrono::seconds(10), all)) return;
  // Threads cannot be killed one by one, and what they hang in uses our stack.
  std::fprintf(stderr, "thread ranks hang and cannot be aborted: giving up on this test program\n");
  std::fflush(nullptr);
  ::_Exit(3);
}

void run_processes(const BackendUnderTest& backend, int size, const Body& body,
                   const WorldOptions& options) {
  run_ranks(
      size,
      [&](const Rank& self) {
        at::set_num_threads(1);
        ::setenv("TRIREME_BACKEND", backend.name.c_str(), 1);
        body(self.rank, [&](const std::string& name) {
          auto world = init(fmt::format("file://{}?rank={}&size={}", (self.scratch / name).string(),
                                        self.rank, size));
          world.set_timeout(options.op_timeout);
          return backend.gpus ? through_gpu(world) : world;
        });
      },
      RunOptions{.deadline = options.deadline});
}

}  // namespace

void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
  *out << backend.name;
}

std::vector<BackendUnderTest> all_backends() {
  return {
      {.name = "local", .threads = true, .sizes = {1, 2, 3, 4, 5}},
      {.name = "shm", .sizes = {2, 3, 4}},
      {.name = "tcp", .sizes = {2, 3, 4}},
  };
}

std::vector<BackendUnderTest> conforming_backends() {
  auto backends = all_backends();
  if (nccl_available()) backends.push_back({.name = "nccl", .sizes = {2, 4}, .gpus = true});
  return backends;
}

void run_worlds(const BackendUnderTest& backend, int size, const Body& body, WorldOptions options) {
  if (backend.threads)
    run_threads(size, body, options);
  else
    run_processes(backend, size, body, options);
}

void run_world(const BackendUnderTest& backend, int size,
               const std::function<void(const comm::Communicator&)>& body, WorldOptions options) {
  run_worlds(
      backend, size, [&](int, const Join& join) { body(join("world")); }, options);
}

}  // namespace trireme::test
