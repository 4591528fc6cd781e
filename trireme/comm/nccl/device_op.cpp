#include "trireme/comm/nccl/device_op.h"

#include <c10/core/DeviceGuard.h>

#include <thread>

#include "trireme/core/error.h"

namespace trireme::comm::nccl {

DeviceOp::DeviceOp(std::shared_ptr<Flight> flight, std::shared_ptr<Channel> channel,
                   std::shared_ptr<GroupBackend> host, std::vector<at::Tensor> tensors,
                   c10::Stream started_on)
    : host_(std::move(host)),
      channel_(std::move(channel)),
      flight_(std::move(flight)),
      tensors_(std::move(tensors)),
      started_on_(started_on) {}

bool DeviceOp::done() const {
  if (is_captured()) return joined_;
  return channel_->finished(*flight_) || channel_->world().failed();
}

void DeviceOp::wait(std::chrono::nanoseconds) {
  if (!is_captured()) {
    if (channel_->world().failed()) raise_unless_finished();
    if (flight_->state == Flight::State::Queued) {
      try {
        channel_->finish_launch(*flight_);
      } catch (...) {
        channel_->settle(*flight_);
        throw;
      }
    }
    if (flight_->state == Flight::State::Cancelled) raise_unless_finished();
  }
  order_current_stream();
}

void DeviceOp::order_current_stream() {
  const c10::Stream current = current_stream(channel_->device());
  const c10::DeviceGuard guard(channel_->device());
  flight_->done.block(current);
  joined_ = true;
  // The caller's stream does not wait, so the allocator must: it would give the memory to others as
  // soon as the caller's stream gets there.
  if (current == started_on_) return;
  for (const at::Tensor& tensor : tensors_) tensor.record_stream(channel_->stream());
}

void DeviceOp::synchronize(std::chrono::nanoseconds) {
  core::check(!is_captured(), "an op in a CUDA graph has no result before the graph is replayed");
  // Yields first: to sleep takes longer than most ops.
  constexpr int kYields = 2000;
  for (int round = 0; !channel_->finished(*flight_); ++round) {
    if (channel_->world().failed()) return raise_unless_finished();
    if (round % 64 == 63) host_->step();
    if (round < kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void DeviceOp::raise_unless_finished() {
  if (channel_->finished(*flight_)) return;
  channel_->settle(*flight_);
  host_->check(flight_->info, flight_->number);
}

}  // namespace trireme::comm::nccl
