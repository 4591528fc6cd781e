#include "trireme/comm/nccl/watcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/comm/nccl/detached.h"
#include "trireme/comm/nccl/shared_memory.h"

namespace trireme::comm::nccl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(10);
/// While something ends, it looks more often.
constexpr auto kShortTick = std::chrono::milliseconds(1);
/// A tick that took much longer was a stopped process or a suspended laptop.
constexpr auto kLongestTick = 8 * kTick;
constexpr auto kNormalEnd = std::chrono::seconds(5);
constexpr auto kAbort = std::chrono::seconds(2);

/// All in one group: otherwise the end of the first one could wait for a kernel of the second.
void abort_communicators(const std::vector<Library::Comm>& comms, c10::Device device) {
  if (comms.empty()) return;
  run_for_at_most(kAbort, [=] {
    use_device(device);
    const Library& nccl = Library::get();
    const std::unique_lock launching(launch_lock(), std::chrono::milliseconds(200));
    nccl.group_start();
    for (const Library::Comm comm : comms) nccl.abort(comm);
    nccl.group_end();
  });
}

}  // namespace

Watcher::Watcher(std::shared_ptr<GroupBackend> host) : host_(std::move(host)) {}

Watcher::~Watcher() {
  if (std::uncaught_exceptions() > exceptions_) host_->abandon();
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    retired_.insert(retired_.end(), channels_.begin(), channels_.end());
    channels_.clear();
    idle_ = false;
  }
  thread_.request_stop();
  wakes_.notify_all();
}

void Watcher::add(std::shared_ptr<Channel> channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(channel));
  if (!thread_.joinable()) thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

void Watcher::retire(const std::shared_ptr<Channel>& channel) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(channels_, channel);
    retired_.push_back(channel);
  }
  wake();
}

void Watcher::wake_thread() {
  {
    const std::lock_guard lock(mutex_);
    idle_ = false;
  }
  wakes_.notify_all();
}

std::vector<std::shared_ptr<Channel>> Watcher::channels() {
  const std::lock_guard lock(mutex_);
  auto all = channels_;
  all.insert(all.end(), retired_.begin(), retired_.end());
  return all;
}

bool Watcher::is_busy() {
  {
    const std::lock_guard lock(mutex_);
    if (!retired_.empty()) return true;
  }
  return std::ranges::any_of(channels(), [](const auto& channel) { return channel->is_busy(); });
}

void Watcher::run(const std::stop_token& stop) {
  try {
    use_device(channels().front()->device());
    auto last = Clock::now();
    while (!stop.stop_requested()) {
      const auto now = Clock::now();
      look(std::min<std::chrono::nanoseconds>(now - last, kLongestTick));
      last = now;
      sleep(stop);
    }
    finish();
  } catch (const std::exception& error) {  // of CUDA: the ranks learn why, and the process goes on
    host_->abort(fmt::format("NCCL's watcher failed: {}", error.what()));
    try {
      abort_all();
    } catch (const std::exception&) {  // the GPU has failed
    }
    settle_detached();
  }
}

void Watcher::look(std::chrono::nanoseconds elapsed) {
  host_->world().engine().watch();
  if (!host_->world().failed())
    for (const auto& channel : channels()) channel->look(elapsed);
  if (host_->world().failed()) abort_all();
  destroy_retired();
}

void Watcher::sleep(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto tick = retired_.empty() ? kTick : kShortTick;
  lock.unlock();
  const bool busy = is_busy();
  lock.lock();
  if (busy) {
    wakes_.wait_for(lock, stop, tick, [] { return false; });
    return;
  }
  // Who starts something first adds it and then reads `idle_`; so look again after setting it.
  idle_ = true;
  lock.unlock();
  const bool busy_now = is_busy();
  lock.lock();
  if (!busy_now) wakes_.wait(lock, stop, [&] { return !idle_; });
  idle_ = false;
}

void Watcher::abort_all() {
  const auto all = channels();
  std::vector<Library::Comm> comms;
  for (const auto& channel : all) {
    if (const Library::Comm comm = channel->take_for_abort()) comms.push_back(comm);
  }
  if (!comms.empty()) {
    remove_names_of_shared_memory();
    abort_communicators(comms, all.front()->device());
  }
  host_->world().engine().watch();  // fails the sentinels, whose data goes with the flights
  for (const auto& channel : all) channel->drop_flights();
}

void Watcher::destroy_retired() {
  std::vector<std::shared_ptr<Channel>> ending;
  {
    const std::lock_guard lock(mutex_);
    ending = retired_;
  }
  for (const auto& channel : ending) {
    bool gone = true;
    try {
      gone = channel->step_destruction();
    } catch (const std::exception&) {  // it cannot be ended, so it stays
    }
    if (!gone) continue;
    const std::lock_guard lock(mutex_);
    std::erase(retired_, channel);
  }
}

void Watcher::finish() {
  const auto until = Clock::now() + kNormalEnd;
  const auto left = [&] {
    const std::lock_guard lock(mutex_);
    return !retired_.empty();
  };
  bool told = false;
  while (left() && Clock::now() < until) {
    look(kShortTick);
    // NCCL ends a communicator when all ranks do. The others must know before that why this one
    // does not come to the next op.
    const auto in_use = [](const auto& channel) { return channel->has_flights(); };
    if (!told && std::ranges::none_of(channels(), in_use)) {
      host_->world().leave();
      told = true;
    }
    std::this_thread::sleep_for(kShortTick);
  }
  if (left()) abort_all();
  settle_detached();
}

}  // namespace trireme::comm::nccl
