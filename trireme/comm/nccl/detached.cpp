#include "trireme/comm/nccl/detached.h"

#include <stdlib.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::comm::nccl {

namespace {

struct Running {
  std::mutex mutex;
  std::condition_variable ended;
  int threads = 0;

  static Running& get() {
    static auto* const running = new Running;  // threads use it while the process ends
    return *running;
  }

  void begin() {
    const std::lock_guard lock(mutex);
    ++threads;
  }

  void end() {
    const std::lock_guard lock(mutex);
    --threads;
    ended.notify_all();
  }

  bool wait_for_all(std::chrono::nanoseconds longest) {
    std::unique_lock lock(mutex);
    return ended.wait_for(lock, longest, [&] { return threads == 0; });
  }
};

void end_at_once(int code, void*) {
  if (Running::get().wait_for_all({})) return;  // they did end
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

void run_detached(std::function<void()> body) {
  Running::get().begin();
  try {
    std::thread([body = std::move(body)]() mutable {
      try {
        body();
      } catch (...) {  // nobody is left to tell
      }
      body = nullptr;  // frees what it holds while that can be freed
      Running::get().end();
    }).detach();
  } catch (...) {  // the system has no more threads
    Running::get().end();
    throw;
  }
}

void run_for_at_most(std::chrono::nanoseconds longest, std::function<void()> body) {
  auto over = std::make_shared<std::promise<void>>();
  auto end = over->get_future();
  run_detached([over = std::move(over), body = std::move(body)] {
    body();
    over->set_value();
  });
  end.wait_for(longest);
}

void settle_detached() {
  // What is registered last runs first: before the destructors of objects that NCCL made meanwhile.
  if (!Running::get().wait_for_all(std::chrono::seconds(1))) ::on_exit(end_at_once, nullptr);
}

}  // namespace trireme::comm::nccl
