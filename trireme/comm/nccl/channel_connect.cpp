// How the members of a channel find each other: by a unique id that travels through the hosts, or
// by splitting a communicator that they have.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "trireme/comm/nccl/channel.h"
#include "trireme/comm/nccl/detached.h"
#include "trireme/comm/nccl/shared_memory.h"
#include "trireme/comm/op.h"

namespace trireme::comm::nccl {

namespace {

using core::OpKind;

/// Tags of the host messages that carry unique ids. No caller may use them.
constexpr int kGroupIdTag = INT32_MIN, kPairIdTag = INT32_MIN + 1;

/// Blocks of a kernel where ranks share a GPU: kernels that wait for each other must all fit on it
/// at once, those of several communicators too. Four ranks with as many blocks as NCCL likes hung
/// on an H200 of 132 multiprocessors, and so did two ranks with four groups of 32 blocks each.
int blocks_on_shared_gpu(std::size_t ranks, bool pair) {
  constexpr int kOfAPair = 2, kOfAllRanks = 16;
  return pair ? kOfAPair : std::max(1, kOfAllRanks / static_cast<int>(ranks));
}

core::OpInfo info_of_id(OpKind kind, int peer, int tag) {
  core::OpInfo info;
  info.kind = kind;
  info.dtype = core::DType::UInt8;
  info.item_bytes = 1;
  info.set_shape(std::array{static_cast<int64_t>(sizeof(Library::UniqueId))});
  info.root = static_cast<int16_t>(peer);
  info.tag = tag;
  info.set_name("nccl id");
  return info;
}

}  // namespace

bool Channel::is_on_one_host() const {
  return std::string_view(world().kind()) != "tcp";
}

/// The first member makes the id and sends it to the others, through the hosts.
void Channel::meet() {
  id_ = at::empty({static_cast<int64_t>(sizeof(Library::UniqueId))}, at::kByte);
  const int tag = is_pair() ? kPairIdTag : kGroupIdTag;
  if (members_.rank != 0) {
    const int first = members_.ranks.front();
    messages_.push_back(
        host_->start(Recv{id_, first, tag}, info_of_id(OpKind::Recv, first, tag), 0));
    state_ = State::Meeting;
    return;
  }
  const Library& nccl = Library::get();
  Library::UniqueId id{};
  nccl.check("ncclGetUniqueId", nccl.unique_id(&id));
  std::memcpy(id_.data_ptr(), &id, sizeof id);
  for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
    const int peer = members_.ranks[i];
    messages_.push_back(host_->start(Send{id_, peer, tag}, info_of_id(OpKind::Send, peer, tag), 0));
  }
  init_communicator();
}

/// NCCL connects two ranks when the first op passes between them, and that call waits for the peer.
/// So a first byte is sent here; every later op is launched at once.
void Channel::init_communicator() {
  Library::UniqueId id{};
  std::memcpy(&id, id_.data_ptr(), sizeof id);
  Library::Config config;
  if (sharing_ == Sharing::SharedGpu)
    config.max_blocks = blocks_on_shared_gpu(members_.ranks.size(), is_pair());
  first_bytes_ = at::empty({static_cast<int64_t>(members_.ranks.size()) + 1},
                           at::TensorOptions().dtype(at::kByte).device(device_));
  run_in_background([id, config, byte = first_bytes_,
                     size = static_cast<int>(members_.ranks.size()), rank = members_.rank,
                     pair = is_pair(), on_one_host = is_on_one_host(),
                     stream = stream_.handle()](Background& job) mutable {
    const Connecting connecting(on_one_host);
    const Library& nccl = Library::get();
    nccl.check("ncclCommInitRankConfig", nccl.init(&job.comm, size, id, rank, &config), job.comm);
    if (pair)
      nccl.check("the first send or receive",
                 rank == 0 ? nccl.send(byte.data_ptr(), 1, Library::kUInt8, 1, job.comm, stream)
                           : nccl.recv(byte.data_ptr(), 1, Library::kUInt8, 0, job.comm, stream),
                 job.comm);
  });
  state_ = State::Initializing;
}

/// The same among all members, before the first all-to-all, gather or scatter: all of them start
/// it.
void Channel::connect_pairs() {
  run_in_background([comm = comm_, bytes = first_bytes_.data_ptr<uint8_t>(),
                     size = static_cast<int>(members_.ranks.size()), on_one_host = is_on_one_host(),
                     stream = stream_.handle()](Background& job) {
    job.comm = comm;
    const Connecting connecting(on_one_host);
    const Library& nccl = Library::get();
    nccl.group_start();
    for (int peer = 0; peer < size; ++peer) {
      nccl.send(bytes + size, 1, Library::kUInt8, peer, comm, stream);
      nccl.recv(bytes + peer, 1, Library::kUInt8, peer, comm, stream);
    }
    nccl.check("the first sends and receives", nccl.group_end(), comm);
  });
  pairs_connected_ = true;
  state_ = State::Initializing;
}

void Channel::run_in_background(std::function<void(Background&)> body) {
  auto job = std::make_shared<Background>();
  background_ = job;
  run_detached([job, body = std::move(body), device = device_] {
    try {
      use_device(device);
      body(*job);
    } catch (const std::exception& error) {
      job->error = error.what();
    }
    job->done = true;
  });
}

void Channel::adopt(Library::Comm comm) {
  first_bytes_ = at::empty({static_cast<int64_t>(members_.ranks.size()) + 1},
                           at::TensorOptions().dtype(at::kByte).device(device_));
  const std::lock_guard lock(mutex_);
  comm_ = comm;
  state_ = State::Ready;
}

/// The call waits for all members, as every split does. The channel is not locked meanwhile: the
/// watcher must be able to abort it.
Library::Comm Channel::split(int color, int key) {
  wait_until_ready();
  const Library& nccl = Library::get();
  const c10::DeviceGuard guard(device_);
  Library::Config config;
  if (sharing_ == Sharing::SharedGpu)
    config.max_blocks = blocks_on_shared_gpu(members_.ranks.size(), /*pair=*/false);
  Library::Comm part = nullptr;
  const Connecting connecting(is_on_one_host());
  const int result = nccl.split(comm_, color, key, &part, &config);
  if (world().failed()) host_->check(core::OpInfo{}, 0);
  nccl.check("ncclCommSplit", result, comm_);
  return part;
}

}  // namespace trireme::comm::nccl
