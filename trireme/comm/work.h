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

/// A started operation. It keeps its tensors, and the group that it runs in, alive until it ends.
class [[nodiscard]] Work {
 public:
  /// Started operations that finish together. Members go in the reverse order: first what runs,
  /// then the memory that it works on, last the group.
  struct State {
    std::shared_ptr<Backend> group;
    c10::SmallVector<Op, 1> ops;
    std::vector<std::pair<at::Tensor, at::Tensor>> copy_back;  ///< to, from: for GPU tensors
    c10::SmallVector<std::shared_ptr<Pending>, 1> pending;
    std::chrono::nanoseconds timeout{};
    int exceptions = std::uncaught_exceptions();  ///< in flight when it was started
    bool waited = false;
    std::exception_ptr error;  ///< what it failed with
  };

  Work() = default;  ///< a finished one
  explicit Work(std::unique_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;

  /// Finishes the work if nobody did. A failure found here is not lost: the world has failed, and
  /// its next operation throws it. While an exception unwinds the stack, it waits for a moment
  /// only, and then ends the world: the other ranks must not wait for a rank that is going.
  ~Work();

  /// Orders what follows after this work: on the CPU the thread waits, on CUDA the current stream
  /// does. Throws CommError, again each time it is called.
  void wait();

  /// Blocks the calling thread until the result is in memory. Throws like wait().
  void synchronize();

  /// Whether wait() would return at once. Throws like wait() if the work has failed.
  bool done() const;

 private:
  bool ended() const;
  void finish() noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
