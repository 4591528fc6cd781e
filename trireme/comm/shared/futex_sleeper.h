#pragma once

#include "trireme/comm/engine.h"
#include "trireme/comm/host_page.h"

namespace trireme::comm {

/// Sleeps on this rank's bell, a futex in the host's page, for ranks that share memory.
class FutexSleeper final : public Sleeper {
 public:
  explicit FutexSleeper(Seat& seat) : seat_(seat) {}

  void prepare(const WakeCondition& condition) override;
  void sleep(std::chrono::nanoseconds most) override;
  void cancel() override;
  void wake() override { ring(seat_); }

 private:
  Seat& seat_;
  std::atomic<int> sleepers_{0};  ///< threads of this rank between prepare and waking
};

}  // namespace trireme::comm
