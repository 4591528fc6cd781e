#include "trireme/optim/offload.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::optim {

namespace {

constexpr int64_t kRunBytes = 32 << 20;

/// A tensor of that shape in the host's memory, pinned where a GPU copies from and to it.
at::Tensor host_copy(const at::Tensor& of, at::ScalarType dtype) {
  return at::empty(of.sizes(),
                   of.options().dtype(dtype).device(at::kCPU).requires_grad(false).pinned_memory(
                       of.device().is_cuda()));
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
    const at::ScalarType dtype = slot.parameter.scalar_type();
    mirrors_.push_back({slot.name, host_copy(slot.parameter, dtype), slot.decay, slot.random_bits});
    gradients_.push_back(host_copy(slot.parameter, at::promote_types(dtype, at::kFloat)));
    bytes += static_cast<int64_t>(slots_[i].parameter.nbytes());
    if (bytes < kRunBytes && i + 1 < slots_.size()) continue;
    runs_.emplace_back(begin, i + 1);
    begin = i + 1;
    bytes = 0;
  }
  if (!slots_.empty() && slots_.front().parameter.device().is_cuda()) {
    const c10::Device device = slots_.front().parameter.device();
    side_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    for (std::size_t i = 0; i < runs_.size(); ++i) came_.emplace_back(device.type());
  }
  refresh();
}

void Offload::refresh() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < slots_.size(); ++i) mirrors_[i].parameter.copy_(slots_[i].parameter);
}

void Offload::fetch_gradients() {
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
    if (mirrors_[i].parameter.grad().defined())
      slots_[i].parameter.detach().copy_(mirrors_[i].parameter, /*non_blocking=*/true);
}

void Offload::finish() {
  if (!side_) return;
  c10::Event sent(side_->device_type());
  sent.record(*side_);
  sent.block(current_stream(side_->device()));
}

}  // namespace trireme::optim
