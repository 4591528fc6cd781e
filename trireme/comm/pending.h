#pragma once

#include <chrono>

namespace trireme::comm {

/// A started operation as a backend hands it out.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() const = 0;
  /// Returns when it is done; throws CommError or TimeoutError.
  virtual void wait(std::chrono::nanoseconds timeout) = 0;
};

}  // namespace trireme::comm
