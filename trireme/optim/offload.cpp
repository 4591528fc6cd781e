#include "trireme/optim/offload.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::optim {

namespace {

constexpr int64_t kRunBytes = 32 << 20;

/// A tensor of that shape in the host's memory, pinned where a GPU copies from and to it.
at::Tensor host_copy(const at::Tensor& of, at::ScalarType dtype, bool pinned) {
  return at::empty(
      of.sizes(),
      of.options().dtype(dtype).device(at::kCPU).requires_grad(false).pinned_memory(pinned));
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

Offload::Offload(std::vector<Slot> slots) : slots_(std::move(slots)) {
  int64_t bytes = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const at::Tensor& own = slot.parameter;
    // A tensor of its own in either case: its .grad is the copy of the gradient.
    Slot& mirror = mirrors_.emplace_back(slot);
    mirror.parameter =
        is_copy(i) ? host_copy(own, own.scalar_type(), /*pinned=*/true) : own.detach();
    mirror.weight = at::Tensor();
    bytes += static_cast<int64_t>(own.nbytes());
    if (bytes < kRunBytes && i + 1 < slots_.size()) continue;
    runs_.emplace_back(begin, i + 1);
    begin = i + 1;
    bytes = 0;
  }
  refresh();
}

/// Makes the memory for gradients that come from this device.
void Offload::prepare(c10::Device device) {
  for (const Slot& slot : slots_)
    gradients_.push_back(host_copy(slot.parameter,
                                   at::promote_types(slot.parameter.scalar_type(), at::kFloat),
                                   device.is_cuda()));
  if (!device.is_cuda()) return;
  side_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  for (std::size_t i = 0; i < runs_.size(); ++i) came_.emplace_back(device.type());
}

void Offload::refresh() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (is_copy(i)) mirrors_[i].parameter.copy_(slots_[i].parameter);
}

void Offload::fetch_gradients() {
  for (const Slot& slot : slots_)
    if (gradients_.empty() && slot.parameter.grad().defined())
      prepare(slot.parameter.grad().device());
  if (side_) {  // wait for the kernels that compute the gradients
    c10::Event ready(side_->device_type());
    ready.record(current_stream(side_->device()));
    ready.block(*side_);
  }
  const c10::OptionalStreamGuard by(side_);
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    for (std::size_t i = runs_[run].first; i < runs_[run].second; ++i) {
      const at::Tensor& gradient = slots_[i].parameter.grad();
      if (gradient.defined()) gradients_[i].copy_(gradient, /*non_blocking=*/true);
      mirrors_[i].parameter.mutable_grad() = gradient.defined() ? gradients_[i] : at::Tensor();
    }
    if (side_) came_[run].record(*side_);
  }
}

void Offload::wait_for(std::size_t begin) {
  for (std::size_t run = 0; run < came_.size(); ++run)
    if (runs_[run].first == begin) came_[run].synchronize();
}

void Offload::send_parameters(std::size_t begin, std::size_t end) {
  const c10::OptionalStreamGuard by(side_);
  for (std::size_t i = begin; i < end; ++i)
    if (is_copy(i) && mirrors_[i].parameter.grad().defined())
      slots_[i].parameter.detach().copy_(mirrors_[i].parameter, /*non_blocking=*/true);
}

void Offload::finish() {
  if (!side_) return;
  c10::Event sent(side_->device_type());
  sent.record(*side_);
  sent.block(current_stream(side_->device()));
}

}  // namespace trireme::optim
