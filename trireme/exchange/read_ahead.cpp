#include "trireme/exchange/read_ahead.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "trireme/core/units.h"

namespace trireme::exchange {

namespace {

constexpr int64_t kSlotBytes = 4 * core::kMiB;
constexpr uint64_t kSlots = 3;

/// Blocks between the two threads: slot n % kSlots has block n.
class Belt {
 public:
  /// The producer: waits for a free slot. False: nobody wants more.
  bool put(const char* bytes, int64_t count) {
    for (int64_t part; count > 0; bytes += part, count -= part) {
      Slot* slot = free_slot();
      if (slot == nullptr) return false;
      part = std::min(count, kSlotBytes - slot->filled);
      std::memcpy(slot->bytes.get() + slot->filled, bytes, static_cast<std::size_t>(part));
      slot->filled += part;
      if (slot->filled == kSlotBytes) pass_on();
    }
    return true;
  }

  /// The producer puts no more: it is done, or has failed.
  void end(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    // If all slots are full, the one at `made_` is the consumer's.
    if (made_ - used_ < kSlots && slots_[made_ % kSlots].filled > 0) ++made_;
    failure_ = failure;
    ended_ = true;
    changed_.notify_all();
  }

  /// The consumer wants no more.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  /// The consumer: uses all blocks until the end.
  void drain(const BytesVisit& use) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return used_ < made_ || ended_; });
      if (used_ == made_) break;
      Slot& slot = slots_[used_ % kSlots];
      lock.unlock();
      use(slot.bytes.get(), slot.filled);
      lock.lock();
      slot.filled = 0;
      ++used_;
      changed_.notify_all();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Slot {
    std::unique_ptr<char[]> bytes{new char[static_cast<std::size_t>(kSlotBytes)]};
    int64_t filled = 0;
  };

  Slot* free_slot() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return made_ - used_ < kSlots || stopped_; });
    return stopped_ ? nullptr : &slots_[made_ % kSlots];
  }

  void pass_on() {
    const std::lock_guard lock(mutex_);
    ++made_;
    changed_.notify_all();
  }

  Slot slots_[kSlots];
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t made_ = 0, used_ = 0;
  bool ended_ = false, stopped_ = false;
  std::exception_ptr failure_;
};

struct NobodyWantsMore {};

}  // namespace

void read_ahead(const std::function<void(const BytesVisit& put)>& make, const BytesVisit& use) {
  Belt belt;
  const std::jthread producer([&] {
    std::exception_ptr failure;
    try {
      make([&](const char* bytes, int64_t count) {
        if (!belt.put(bytes, count)) throw NobodyWantsMore{};
      });
    } catch (const NobodyWantsMore&) {
    } catch (...) {
      failure = std::current_exception();
    }
    belt.end(failure);
  });
  try {
    belt.drain(use);
  } catch (...) {
    belt.stop();
    throw;
  }
}

}  // namespace trireme::exchange
