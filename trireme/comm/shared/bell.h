#pragma once

#include "trireme/comm/engine.h"
#include "trireme/comm/host_page.h"

namespace trireme::comm {

/// Sleeps on this rank's bell in the host's page, for ranks that share memory.
class Bell final : public Sleeper {
 public:
  explicit Bell(Seat& seat) : seat_(seat) {}

  void prepare(const Hint& hint) override;
  void sleep(std::chrono::nanoseconds most) override;
  void cancel() override;
  void wake() override { ring(seat_); }

 private:
  Seat& seat_;
  std::atomic<int> sleepers_{0};  ///< threads of this rank between prepare and waking
};

}  // namespace trireme::comm
