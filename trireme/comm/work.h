#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/backend.h"
#include "trireme/comm/op.h"

namespace trireme::comm {

/// A started operation. It keeps its tensors and its group alive until it ends.
class [[nodiscard]] Work {
 public:
  /// Started operations that one Work waits for. The order of the members matters: they are
  /// destroyed from the last to the first, so what runs goes before its memory, and the group goes
  /// last.
  struct StartedOps {
    std::shared_ptr<Backend> group;
    c10::SmallVector<Op, 1> ops;
    std::vector<std::pair<at::Tensor, at::Tensor>> copy_back;  ///< to, from: for GPU tensors
    c10::SmallVector<std::shared_ptr<PendingOp>, 1> pending;
    std::chrono::nanoseconds timeout{};
    int exceptions = std::uncaught_exceptions();  ///< in flight when the ops were started
    bool waited = false;
    std::exception_ptr error;  ///< what they failed with
  };

  Work() = default;  ///< a finished one
  explicit Work(std::unique_ptr<StartedOps> started);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;

  /// Waits for the work if nobody has. A failure found here is not lost: the world has failed, and
  /// its next operation throws. While an exception unwinds the stack, the destructor waits only for
  /// a moment and then fails the world: the other ranks must not wait for a rank that is ending.
  ~Work();

  /// Makes what follows wait for this work: on the CPU the thread waits, on CUDA the current
  /// stream. Throws CommError if the work has failed, each time it is called.
  void wait();

  /// Blocks the calling thread until the result is in memory. Throws like wait().
  void synchronize();

  /// Whether wait() would return at once. Throws like wait() if the work has failed.
  bool done() const;

 private:
  bool ended() const;
  void finish() noexcept;
  std::unique_ptr<StartedOps> started_;
};

}  // namespace trireme::comm
