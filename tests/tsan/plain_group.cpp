#include "tsan/plain_group.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "support/scratch.h"
#include "support/tcp_world.h"
#include "trireme/comm/local/local.h"

namespace trireme::comm {

/// comm/op.cpp does this for tensors.
LoweredOp lower(const Op& op, const core::OpInfo& info, int size) {
  LoweredOp lowered{.info = info};
  const auto whole = [&](const at::Tensor& t) {
    lowered.in = lowered.out = t.data;
    lowered.bytes = t.bytes;
  };
  if (const auto* o = std::get_if<AllReduce>(&op)) whole(o->data);
  if (const auto* o = std::get_if<Broadcast>(&op)) whole(o->data);
  if (const auto* o = std::get_if<Send>(&op)) whole(o->data);
  if (const auto* o = std::get_if<Recv>(&op)) whole(o->data);
  if (const auto* o = std::get_if<AllGather>(&op)) {
    lowered.in = o->in.data;
    lowered.out = o->out.data;
    lowered.bytes = o->out.bytes;
    for (int rank = 0; rank <= size; ++rank) lowered.out_begin.push_back(o->in.bytes * rank);
  }
  return lowered;
}

}  // namespace trireme::comm

namespace trireme::test {

namespace {

constexpr auto kTimeout = std::chrono::seconds(30);

at::Tensor memory(const float* data, int64_t count) {
  return {reinterpret_cast<std::byte*>(const_cast<float*>(data)), count * 4};
}

using Make = std::function<std::shared_ptr<comm::Backend>(int rank)>;

void run_threads(int size, const Make& make, const std::function<void(PlainGroup)>& body) {
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(PlainGroup(make(rank)));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      }
    });
  }
}

}  // namespace

PlainGroup::Started PlainGroup::start(const comm::Op& op, core::OpKind kind, int64_t count,
                                      int root, int tag, core::Algorithm algorithm) {
  core::OpInfo info;
  info.kind = kind;
  info.dtype = core::DType::Float32;
  info.item_bytes = 4;
  info.algorithm = algorithm;
  info.root = static_cast<int16_t>(root);
  info.tag = tag;
  info.set_shape(std::array{count});
  const bool transfer = kind == core::OpKind::Send || kind == core::OpKind::Recv;
  const uint64_t number = transfer ? ++transfers_ : ++collectives_;
  backend_->check(info, number);
  return backend_->start(op, info, number);
}

PlainGroup::Started PlainGroup::all_reduce(float* data, int64_t count, core::Algorithm algorithm) {
  return start(comm::AllReduce{memory(data, count)}, core::OpKind::AllReduce, count, -1, 0,
               algorithm);
}
PlainGroup::Started PlainGroup::broadcast(float* data, int64_t count, int root) {
  return start(comm::Broadcast{memory(data, count)}, core::OpKind::Broadcast, count, root, 0,
               core::Algorithm::Auto);
}
PlainGroup::Started PlainGroup::all_gather(float* out, const float* in, int64_t count) {
  return start(comm::AllGather{memory(out, count * size()), memory(in, count)},
               core::OpKind::AllGather, count * size(), -1, 0, core::Algorithm::Auto);
}
PlainGroup::Started PlainGroup::send(const float* data, int64_t count, int to, int tag) {
  return start(comm::Send{memory(data, count)}, core::OpKind::Send, count, to, tag,
               core::Algorithm::Auto);
}
PlainGroup::Started PlainGroup::recv(float* data, int64_t count, int from, int tag) {
  return start(comm::Recv{memory(data, count)}, core::OpKind::Recv, count, from, tag,
               core::Algorithm::Auto);
}
void PlainGroup::barrier() {
  wait(start(comm::Barrier{}, core::OpKind::Barrier, 0, -1, 0, core::Algorithm::Auto));
}

PlainGroup PlainGroup::split(const std::string& name, int color, int key) {
  return PlainGroup(backend_->split(name, color, key, collectives_));
}

std::shared_ptr<float> PlainGroup::allocate(int64_t count) {
  const auto bytes = backend_->allocate(count * 4, at::kCPU, collectives_);
  return {bytes, reinterpret_cast<float*>(bytes.get())};
}

void wait(const PlainGroup::Started& work) {
  if (work) work->wait(kTimeout);
}

void run_local(int size, const std::function<void(PlainGroup)>& body) {
  const auto hub = comm::make_local_hub(size);
  run_threads(
      size, [&](int rank) { return comm::make_local(hub, rank); }, body);
}

void run_tcp(int size, const std::function<void(PlainGroup)>& body) {
  const Scratch scratch;
  const auto make = [&](int rank) {
    return join_tcp({scratch / "store", rank, size}, net::Clock::now() + kTimeout);
  };
  run_threads(size, make, body);
}

}  // namespace trireme::test
