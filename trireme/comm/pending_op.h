#pragma once

#include <chrono>

namespace trireme::comm {

/// A started operation, as a backend returns it.
class PendingOp {
 public:
  virtual ~PendingOp() = default;
  virtual bool done() const = 0;
  /// Returns when it is done; throws CommError or TimeoutError. An operation on a GPU makes the
  /// current stream wait instead, and returns at once.
  virtual void wait(std::chrono::nanoseconds timeout) = 0;
  /// Returns when the result is in memory; throws the same.
  virtual void synchronize(std::chrono::nanoseconds timeout) { wait(timeout); }
};

}  // namespace trireme::comm
