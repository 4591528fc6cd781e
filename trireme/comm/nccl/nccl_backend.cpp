#include "trireme/comm/nccl/nccl_backend.h"

#include <stdlib.h>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <numeric>

#include "trireme/comm/nccl/device_op.h"
#include "trireme/comm/nccl/nccl.h"
#include "trireme/core/error.h"

namespace trireme::comm {

std::shared_ptr<Backend> make_nccl(std::shared_ptr<Backend> host, nccl::Sharing sharing) {
  if (sharing == nccl::Sharing::SharedGpu) ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  // All connections of a communicator are made when it is, not by the first op that needs them.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  auto group = std::dynamic_pointer_cast<GroupBackend>(std::move(host));
  TORCH_INTERNAL_ASSERT(group, "NCCL needs a world of local, shm or tcp below it");
  auto watcher = std::make_shared<nccl::Watcher>(group);
  return std::make_shared<nccl::NcclBackend>(std::move(group), std::move(watcher), sharing);
}

}  // namespace trireme::comm

namespace trireme::comm::nccl {

namespace {

using core::OpInfo;
using core::OpKind;

std::vector<at::Tensor> tensors_of(Op op) {
  std::vector<at::Tensor> tensors;
  for (const auto& side : {inputs(op), outputs(op)}) {
    for (const at::Tensor* tensor : side) {
      if (tensor->defined()) tensors.push_back(*tensor);
    }
  }
  return tensors;
}

/// In a group of one an op is a copy, or nothing.
void run_alone(Op op) {
  const auto from = inputs(op), to = outputs(op);
  if (from.empty() || to.empty() || from[0]->data_ptr() == to[0]->data_ptr()) return;
  to[0]->flatten().copy_(from[0]->flatten(), /*non_blocking=*/true);
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<GroupBackend> host, std::shared_ptr<Watcher> watcher,
                         Sharing sharing)
    : host_(std::move(host)),
      watcher_(std::move(watcher)),
      sharing_(sharing),
      nothing_(at::empty({0}, at::kByte)) {}

NcclBackend::~NcclBackend() {
  if (channel_) watcher_->retire(channel_);
  for (const auto& [key, direction] : directions_) watcher_->retire(direction.channel);
}

std::string NcclBackend::kind() const {
  return host_->world().size() == 1 ? host_->kind() : "nccl";
}

std::shared_ptr<PendingOp> NcclBackend::start(const Op& op, const OpInfo& info, uint64_t number) {
  const auto device = device_of(op);
  if (device && device->is_cpu()) return host_->start(op, info, number);
  if (size() > 1) return start_on_gpu(op, info, number);
  run_alone(op);
  return nullptr;
}

std::shared_ptr<PendingOp> NcclBackend::start_on_gpu(const Op& op, const OpInfo& info,
                                                     uint64_t number) {
  const at::Device device = *device_of(op);
  const c10::Stream current = current_stream(device);
  const auto channel = info.is_transfer() ? direction(info, device).channel : group_channel(device);
  const bool capturing = is_capturing(current);
  const LoweredOp lowered = lower(op, info, size());
  const auto flight = channel->make_flight(info, number);
  flight->calls = calls_of(lowered, rank());
  core::check(
      !capturing || !channel->connects(flight->calls),
      "{} on '{}': the first op of a group, its first all-to-all, gather or scatter, and the "
      "first between two ranks connect them and cannot go into a CUDA graph; run it once "
      "before the capture",
      core::to_string(info), host_->lane().name);
  flight->in = lowered.in;
  flight->out = lowered.out;
  flight->timeout = timeout();
  flight->capturing = capturing;
  {
    const c10::DeviceGuard guard(device);
    flight->ready.record(current);
  }
  if (capturing) {
    start_sentinel(flight, lowered);
    channel->start_captured(flight);
  } else {
    launch(*channel, flight, lowered);
  }
  watcher_->wake();
  return std::make_shared<DeviceOp>(flight, channel, host_, tensors_of(op), current);
}

/// The sentinel comes second: the hosts exchange it while the GPU works.
void NcclBackend::launch(Channel& channel, const std::shared_ptr<Flight>& flight,
                         const LoweredOp& lowered) {
  try {
    channel.start(flight, [&] { start_sentinel(flight, lowered); });
  } catch (const std::exception& error) {
    if (!host_->world().failed())  // the others must not wait for an op that has no sentinel
      host_->abort(fmt::format("an op over NCCL could not be announced: {}", error.what()));
    watcher_->wake();
    channel.settle(*flight);
    throw;
  }
}

std::shared_ptr<PendingOp> NcclBackend::replay(const std::function<void()>& launch,
                                               const OpInfo& info, uint64_t number) {
  if (size() == 1) {
    launch();
    return nullptr;
  }
  const at::Device device =
      channel_ ? channel_->device() : c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  const c10::Stream current = current_stream(device);
  const auto channel = group_channel(device);
  const auto flight = channel->make_flight(info, number);
  // Between its two events the graph computes as well, which is no waiting.
  constexpr int kWithComputing = 20;
  flight->timeout = kWithComputing * timeout();
  start_sentinel(flight, {});
  flight->ready.record(current);
  launch();
  flight->done.record(current);
  channel->watch(flight);
  watcher_->wake();
  return std::make_shared<DeviceOp>(flight, channel, host_, std::vector<at::Tensor>{}, current);
}

// Channels.

std::shared_ptr<Channel> NcclBackend::make_channel(Channel::Members members, at::Device device) {
  auto channel = std::make_shared<Channel>(host_, std::move(members), device, sharing_);
  watcher_->add(channel);
  return channel;
}

std::shared_ptr<Channel> NcclBackend::group_channel(at::Device device) {
  if (!channel_) {
    Channel::Members members{.ranks = std::vector<int>(static_cast<std::size_t>(size())),
                             .rank = rank()};
    std::iota(members.ranks.begin(), members.ranks.end(), 0);
    channel_ = make_channel(std::move(members), device);
  }
  core::check(channel_->device() == device,
              "rank {} of '{}' has used cuda:{} and now passes a tensor on cuda:{}; a rank has one "
              "GPU",
              rank(), host_->lane().name, channel_->device().index(), device.index());
  return channel_;
}

NcclBackend::OneDirection& NcclBackend::direction(const OpInfo& info, at::Device device) {
  OneDirection& found = directions_[{info.root, info.kind}];
  if (!found.channel) {
    const bool sends = info.kind == OpKind::Send;
    found.channel = make_channel(
        {.ranks = sends ? std::vector<int>{rank(), info.root} : std::vector<int>{info.root, rank()},
         .rank = sends ? 0 : 1,
         .use = Channel::Members::Use::OneDirection},
        device);
  }
  return found;
}

// Groups and memory.

std::shared_ptr<Backend> NcclBackend::split(const std::string& name, int color, int key,
                                            uint64_t& number) {
  auto part = std::static_pointer_cast<GroupBackend>(host_->split(name, color, key, number));
  auto backend = std::make_shared<NcclBackend>(part, watcher_, sharing_);
  // All ranks have started the same collectives, so all have a channel or none has. Without one,
  // the part makes its own when it first needs it.
  if (!channel_ || Library::get().split == nullptr) return backend;
  watcher_->wake();
  const bool needs_one = part->size() > 1;
  const Library::Comm comm = channel_->split(needs_one ? color : Library::kNoColor, part->rank());
  if (needs_one) backend->group_channel(channel_->device())->adopt(comm);
  return backend;
}

std::shared_ptr<Backend> NcclBackend::alone(const std::string& name) {
  return std::make_shared<NcclBackend>(std::static_pointer_cast<GroupBackend>(host_->alone(name)),
                                       watcher_, sharing_);
}

std::shared_ptr<std::byte> NcclBackend::allocate(int64_t bytes, at::Device device,
                                                 uint64_t& number) {
  if (device.is_cpu()) return host_->allocate(bytes, device, number);
  if (size() == 1 || !Library::get().can_register()) return nullptr;
  const auto channel = group_channel(device);
  watcher_->wake();
  channel->wait_until_ready();
  if (bytes == 0) return nullptr;
  const Library& nccl = Library::get();
  const c10::DeviceGuard guard(device);
  void* memory = nullptr;
  void* handle = nullptr;
  const std::lock_guard launching(launch_lock());
  if (nccl.allocate(&memory, static_cast<std::size_t>(bytes)) != Library::kSuccess) return nullptr;
  // What NCCL cannot register is still memory.
  if (nccl.register_memory(channel->comm(), memory, static_cast<std::size_t>(bytes), &handle) !=
      Library::kSuccess)
    handle = nullptr;
  const auto free = [channel, handle](std::byte* place) {
    // In a world that has failed a kernel may still use it, and nothing can be waited for.
    if (channel->world().failed()) return;
    const Library& library = Library::get();
    try {
      const c10::DeviceGuard on(channel->device());
      // Unlike libtorch's allocator, this one hands memory back at once.
      c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(channel->device().index());
    } catch (const std::exception&) {  // the GPU has failed
      return;
    }
    const std::lock_guard freeing(launch_lock());
    if (handle != nullptr && channel->comm() != nullptr)
      library.deregister(channel->comm(), handle);
    library.free(place);
  };
  return {static_cast<std::byte*>(memory), free};
}

}  // namespace trireme::comm::nccl
