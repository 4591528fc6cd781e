#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "trireme/comm/nccl/watcher.h"
#include "trireme/comm/pending_op.h"

namespace trireme::comm::nccl {

/// A started op on the GPU, as its `Work` sees it.
class DeviceOp final : public PendingOp {
 public:
  /// `tensors`: of the op. `started_on`: the caller's stream.
  DeviceOp(std::shared_ptr<Flight> flight, std::shared_ptr<Channel> channel,
           std::shared_ptr<GroupBackend> host, std::vector<at::Tensor> tensors,
           c10::Stream started_on);

  /// True if the result is there, or the world has failed: wait() says which. An op that went into
  /// a CUDA graph is done when something waits for it.
  bool done() const override;
  /// Makes the current stream wait. Blocks the host only while NCCL connects the ranks, before the
  /// first op between them.
  void wait(std::chrono::nanoseconds timeout) override;
  void synchronize(std::chrono::nanoseconds timeout) override;

 private:
  bool is_captured() const { return flight_->state == Flight::State::Captured; }
  void order_current_stream();
  /// The world has failed: throws why, unless the op was complete before.
  void raise_unless_finished();

  const std::shared_ptr<GroupBackend> host_;
  const std::shared_ptr<Channel> channel_;
  const std::shared_ptr<Flight> flight_;
  const std::vector<at::Tensor> tensors_;
  const c10::Stream started_on_;
  bool joined_ = false;
};

}  // namespace trireme::comm::nccl
