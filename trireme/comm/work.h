#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/backend.h"
#include "trireme/comm/op.h"

namespace trireme::comm {

/// A started operation. It keeps its tensors alive until it is finished.
class [[nodiscard]] Work {
 public:
  /// Started operations that finish together, the tensors that they work on, and (for tensors that
  /// live on a GPU) the copies to make when they have.
  struct State {
    c10::SmallVector<std::shared_ptr<Pending>, 1> pending;
    c10::SmallVector<Op, 1> ops;
    std::vector<std::pair<at::Tensor, at::Tensor>> copy_back;  ///< to, from
    std::chrono::nanoseconds timeout{};
    std::shared_ptr<void> group;  ///< what it runs in
    bool waited = false;
  };

  Work() = default;  ///< a finished one
  explicit Work(std::unique_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;

  /// Finishes the work if nobody did. A failure found here is not lost: the world has failed, and
  /// its next operation throws it.
  ~Work();

  /// Orders what follows after this work: on the CPU the thread waits, on CUDA the current stream
  /// does. Throws CommError.
  void wait();

  /// Blocks the calling thread until the result is in memory. Throws CommError.
  void synchronize();

  bool done() const;

 private:
  void finish() noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
