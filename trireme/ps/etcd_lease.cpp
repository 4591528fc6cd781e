#include "trireme/ps/etcd_lease.h"

#include <unistd.h>

#include <array>

namespace trireme::ps {

namespace {

/// For people who look for the process.
std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("host {}, pid {}", host.data(), ::getpid());
}

}  // namespace

EtcdLease::EtcdLease(const std::vector<net::Address>& hosts, std::string key,
                     std::chrono::seconds time)
    : etcd_(hosts), key_(std::move(key)), keeper_(hosts) {
  // The lease of a dead holder runs out within its time, and etcd looks every half a second.
  const auto until = net::Clock::now() + 2 * time + std::chrono::seconds(1);
  for (;;) {
    const auto now = net::Clock::now();
    try {
      lease_ = etcd_.grant(time);
      held_until_ = now + lease_.time;
      break;
    } catch (const EtcdAway&) {
      if (now >= until) throw;
      std::this_thread::sleep_for(kAskAgain);
    }
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { keep_alive(stop); });
  take(until);
}

EtcdLease::~EtcdLease() {
  thread_.request_stop();
  thread_.join();
  try {
    etcd_.revoke(lease_.id);
  } catch (const CommError&) {  // then it runs out
  }
}

void EtcdLease::take(net::Deadline until) {
  for (;; std::this_thread::sleep_for(kAskAgain)) {
    const bool is_last = net::Clock::now() >= until;
    try {
      if (try_to_take()) return;
      if (is_last)
        throw CommError(fmt::format(
            "another manager of this job is running ({}): it holds {} in etcd at {}; end it, or "
            "give this job another name",
            holder(), key_, etcd_.hosts()));
    } catch (const EtcdAway&) {
      if (is_last) throw;
    }
  }
}

/// The answer to an earlier attempt may have been lost: then the key is there, with our lease.
bool EtcdLease::try_to_take() {
  etcd_.commit({.key = key_, .puts = {{.key = key_, .value = this_process(), .lease = lease_.id}}});
  const auto entry = etcd_.read(key_);
  if (!entry || entry->lease != lease_.id) return false;
  created_ = entry->created;
  return true;
}

std::string EtcdLease::holder() {
  const auto entry = etcd_.read(key_);
  return entry ? entry->value : "it has just ended";
}

/// A lease lives from when etcd gets the request, which is after it was sent. One that has run out
/// by our clock stays so: this process has said that it has lost it, or is about to.
void EtcdLease::keep_alive(const std::stop_token& stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::chrono::duration<double> pause{};
  while (!wake_.wait_for(lock, stop, pause, [&] { return stop.stop_requested(); })) {
    const auto now = net::Clock::now();
    auto before = held_until_.load();
    if (now >= before) return;
    try {
      const bool lives = keeper_.keep_alive(lease_.id);
      held_until_.compare_exchange_strong(before, lives ? now + lease_.time : net::Deadline::min());
      pause = lease_.time / 3.0;
    } catch (const CommError&) {  // `commit` says so, if it lasts
      pause = kAskAgain;
    }
  }
}

void EtcdLease::fail() const {
  throw CommError(
      fmt::format("this manager's lease on {} in etcd at {} has run out, so another one may decide "
                  "now: start it again",
                  key_, etcd_.hosts()));
}

void EtcdLease::fail_while(const EtcdAway& away) const {
  throw CommError(
      fmt::format("{}; the manager's lease has run out meanwhile: start it again when etcd is back",
                  away.what()));
}

void EtcdLease::check_held() const {
  if (net::Clock::now() >= held_until_.load()) fail();
}

void EtcdLease::commit(std::vector<EtcdEntry> puts, std::vector<EtcdKeys> removals) {
  const EtcdChange change{
      .key = key_, .created = created_, .puts = std::move(puts), .removals = std::move(removals)};
  const std::lock_guard lock(mutex_);
  if (while_held([&] { return etcd_.commit(change); })) return;
  held_until_ = net::Deadline::min();
  fail();
}

}  // namespace trireme::ps
