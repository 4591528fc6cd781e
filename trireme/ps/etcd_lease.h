#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/ps/etcd.h"

namespace trireme::ps {

/// The right to decide for a job: a key in etcd that is there as long as its lease is kept alive.
///
///   grant ──> make the key ──────────────> keep alive, every third of its time ──> revoke
///                  │ there is one: again, for as long as the lease of a dead holder may last
///
/// What etcd changes it changes only while the key is the one that was made here. So a holder that
/// was stopped, or cut off, until its lease ran out can change nothing more, whatever it believes.
class EtcdLease {
 public:
  /// Waits for the key. Throws CommError that says who holds it, or that etcd does not answer.
  EtcdLease(const std::vector<net::Address>& hosts, std::string key, std::chrono::seconds time);
  ~EtcdLease();
  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;

  int64_t id() const { return lease_.id; }

  /// Asks etcd something. While that is away it asks again, until the lease has run out by the
  /// clock of this process; then throws CommError.
  template <class Ask>
  auto while_held(const Ask& ask) const {
    for (;; std::this_thread::sleep_for(kAskAgain)) {
      try {
        return ask();
      } catch (const EtcdAway& away) {
        if (net::Clock::now() >= held_until_.load()) fail_while(away);
      }
    }
  }

  /// Changes entries, as above. Throws CommError if the lease has run out. From any thread.
  void commit(std::vector<EtcdEntry> puts, std::vector<EtcdKeys> removals = {});
  /// Throws CommError if the lease has run out, as far as is known here. Returns at once.
  void check_held() const;

 private:
  void take(net::Deadline until);
  bool try_to_take();
  std::string holder();
  void keep_alive(const std::stop_token& stop);
  [[noreturn]] void fail() const;
  [[noreturn]] void fail_while(const EtcdAway& away) const;

  static constexpr std::chrono::milliseconds kAskAgain{50};

  std::mutex mutex_;  ///< of etcd_
  Etcd etcd_;
  const std::string key_;
  Etcd::Lease lease_;
  int64_t created_ = 0;  ///< the revision that made the key
  std::atomic<net::Deadline> held_until_ = net::Deadline::min();
  std::condition_variable_any wake_;
  Etcd keeper_;  ///< of thread_
  std::jthread thread_;
};

}  // namespace trireme::ps
