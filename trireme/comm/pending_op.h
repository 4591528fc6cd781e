#pragma once

#include <chrono>

namespace trireme::comm {

/// A started operation, as a backend returns it.
class PendingOp {
 public:
  virtual ~PendingOp() = default;
  virtual bool done() const = 0;
  /// Returns when it is done; throws CommError or TimeoutError.
  virtual void wait(std::chrono::nanoseconds timeout) = 0;
};

}  // namespace trireme::comm
