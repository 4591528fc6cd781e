#include "trireme/train/memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>

namespace trireme::train {

int64_t pss_mib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "Pss: %lld kB", &kib) == 1) return kib >> 10;
  }
  return 0;
}

class TensorMemory::Hook final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    const int64_t all = now += bytes;
    for (int64_t most = peak; most < all && !peak.compare_exchange_weak(most, all);) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::atomic<int64_t> now = 0, peak = 0;  // compressed sums allocate on a thread of their own
};

TensorMemory::TensorMemory() : hook_(std::make_shared<Hook>()) {
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, hook_);
}

TensorMemory::~TensorMemory() {
  c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
}

int64_t TensorMemory::now() const {
  return hook_->now;
}
int64_t TensorMemory::peak() const {
  return hook_->peak;
}

}  // namespace trireme::train
