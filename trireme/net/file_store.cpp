#include <mutex>
#include <type_traits>

#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/net/bytes.h"
#include "trireme/net/file_log.h"
#include "trireme/net/retry.h"
#include "trireme/net/store.h"

namespace trireme::net {

namespace {

class FileStore : public Store {
 public:
  FileStore(const std::string& path, const Identity& me, Deadline deadline)
      : log_(path, me, deadline) {}

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    check_sizes(key, value);
    change(key, deadline, [&](StoreTable& table) {
      table.set(key, value);
      return Changed::Yes;
    });
  }

  std::optional<std::string> get(const std::string& key, Deadline deadline) override {
    check_sizes(key);
    std::optional<std::string> found;
    locked(FileLog::LockKind::Shared, key, deadline, [&](FileLog::LockGuard& hold) {
      if (const auto value = hold.table().get(key)) found = *value;
    });
    return found;
  }

  std::vector<std::string> wait_all(const std::vector<std::string>& keys,
                                    Deadline deadline) override {
    const auto start = Clock::now();
    std::vector<std::string> values;
    for (Backoff backoff(std::chrono::microseconds(100), std::chrono::milliseconds(10));;) {
      // Reads as many values as there are under one lock, and waits for the rest.
      const std::string& next = keys[values.size()];
      check_sizes(next);
      locked(FileLog::LockKind::Shared, next, deadline, [&](FileLog::LockGuard& hold) {
        while (values.size() < keys.size()) {
          const auto value = hold.table().get(keys[values.size()]);
          if (!value) break;
          values.push_back(*value);
        }
      });
      if (values.size() == keys.size()) return values;
      if (backoff.sleep(deadline) == Readiness::DeadlinePassed)
        throw TimeoutError(
            fmt::format("wait for key '{}' of the file store {}: nobody set it in {}",
                        printable(keys[values.size()]), log_.path(),
                        core::format_duration(Clock::now() - start)));
    }
  }

  int64_t add(const std::string& key, int64_t delta, Deadline deadline) override {
    check_sizes(key);
    int64_t sum = 0;
    change(key, deadline, [&](StoreTable& table) {
      sum = table.add(key, delta);
      return Changed::Yes;
    });
    return sum;
  }

  std::string compare_and_set(const std::string& key, const std::string& expected,
                              const std::string& desired, Deadline deadline) override {
    check_sizes(key, expected, desired);
    StoreTable::Value after;
    change(key, deadline, [&](StoreTable& table) {
      const StoreTable::Value before = table.get(key);
      after = table.compare_and_set(key, expected, desired);
      return after == before ? Changed::No : Changed::Yes;
    });
    return after ? *after : std::string();
  }

  bool erase(const std::string& key, Deadline deadline) override {
    check_sizes(key);
    bool was_there = false;
    change(key, deadline, [&](StoreTable& table) {
      was_there = table.erase(key);
      return was_there ? Changed::Yes : Changed::No;
    });
    return was_there;
  }

  void remove() noexcept override { log_.remove(); }

 private:
  enum class Changed { Yes, No };

  template <class Body>
  void change(const std::string& key, Deadline deadline, Body body) {
    locked(FileLog::LockKind::Exclusive, key, deadline, [&](FileLog::LockGuard& hold) {
      if (body(hold.table()) == Changed::Yes) hold.save(key);
    });
  }

  /// Runs the body under the lock of the file. It does not hold the mutex while it waits for that
  /// lock, so that each thread keeps its own deadline.
  template <class Body>
  void locked(FileLog::LockKind lock, const std::string& key, Deadline deadline, Body body) {
    for (Backoff backoff(std::chrono::microseconds(50), std::chrono::milliseconds(2));;) {
      {
        const std::lock_guard guard(mutex_);
        if (auto hold = log_.try_lock(lock)) return body(*hold);
      }
      if (backoff.sleep(deadline) == Readiness::DeadlinePassed)
        throw TimeoutError(fmt::format(
            "key '{}' of the file store {}: it stays locked by another process; is one stopped?",
            printable(key), log_.path()));
    }
  }

  std::mutex mutex_;
  FileLog log_;
};

}  // namespace

std::unique_ptr<Store> open_file_store(const std::string& path, const Identity& me,
                                       Deadline deadline) {
  if (me.size < 1 || me.rank < 0 || me.rank >= me.size)
    throw ConfigError(fmt::format("{} {} in a world of {}: ranks go from 0 to {}", me.role, me.rank,
                                  me.size, me.size - 1));
  return std::make_unique<FileStore>(path, me, deadline);
}

}  // namespace trireme::net
