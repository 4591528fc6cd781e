// The sentinel of an op on a GPU: the same op without data, among the hosts.
#include "trireme/comm/nccl/sentinel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "trireme/comm/nccl/nccl_backend.h"

namespace trireme::comm::nccl {

namespace {

using core::OpInfo;
using core::OpKind;

/// Tells ops on GPUs from those in host memory: a collective must be the same on all ranks.
constexpr int32_t kOnGpu = 0x6770'75;

}  // namespace

Op without_data(const OpInfo& info, const at::Tensor& nothing) {
  switch (info.kind) {
    case OpKind::AllReduce: return AllReduce{nothing};
    case OpKind::Broadcast: return Broadcast{nothing, info.root};
    case OpKind::Reduce: return Reduce{nothing, info.root};
    case OpKind::AllGather: return AllGather{nothing, nothing};
    case OpKind::ReduceScatter: return ReduceScatter{nothing, nothing};
    case OpKind::Gather: return Gather{nothing, nothing, info.root};
    case OpKind::Scatter: return Scatter{nothing, nothing, info.root};
    default: return Barrier{};
  }
}

void NcclBackend::start_sentinel(const std::shared_ptr<Flight>& flight, const LoweredOp& lowered) {
  OpInfo info = flight->info;
  // The one before is mostly over by now. Then this one does not queue behind it.
  host_->step();
  if (info.is_transfer()) {
    start_order(flight, info);
  } else {
    info.tag ^= kOnGpu;
    if (info.kind == OpKind::AllToAll)
      start_sizes(*flight, lowered, info);
    else
      flight->sentinel = std::static_pointer_cast<Task>(
          host_->start(without_data(info, nothing_), info, flight->number));
  }
}

/// An all-to-all among the hosts of how many bytes each rank sends to each: NCCL would wait for
/// ever if two ranks did not agree on that.
void NcclBackend::start_sizes(Flight& flight, const LoweredOp& lowered, const OpInfo& marked) {
  const auto sent = at::empty({size()}, at::kLong), got = at::empty({size()}, at::kLong);
  std::vector<int64_t> expected;
  for (int peer = 0; peer < size(); ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    sent.data_ptr<int64_t>()[peer] = lowered.in_begin[at + 1] - lowered.in_begin[at];
    expected.push_back(lowered.out_begin[at + 1] - lowered.out_begin[at]);
  }
  flight.sentinel_data = {sent, got};
  flight.sentinel =
      std::static_pointer_cast<Task>(host_->start(AllToAll{got, sent}, marked, flight.number));
  flight.compare = [host = host_, info = flight.info, got, expected = std::move(expected)] {
    for (std::size_t peer = 0; peer < expected.size(); ++peer) {
      const int64_t bytes = got.data_ptr<int64_t>()[peer];
      if (bytes == expected[peer]) continue;
      host->world().report_mismatch({host->lane().members[peer], info, info,
                                     static_cast<uint64_t>(expected[peer]),
                                     static_cast<uint64_t>(bytes)});
      return;
    }
  };
}

/// A message between the hosts under the op's tag, which says how many ops went this way before.
/// The hosts compare shapes and dtypes; the receiver compares the count.
void NcclBackend::start_order(const std::shared_ptr<Flight>& flight, const OpInfo& info) {
  const int64_t place = directions_.at({info.root, info.kind}).ops++;
  const auto count = at::full({1}, place, at::kLong);
  flight->sentinel_data = {count};
  const bool sends = info.kind == OpKind::Send;
  const Op message =
      sends ? Op(Send{count, info.root, info.tag}) : Op(Recv{count, info.root, info.tag});
  flight->sentinel = std::static_pointer_cast<Task>(host_->start(message, info, flight->number));
  if (sends) return;
  flight->compare = [host = host_, info, place, count] {
    const int64_t sent = *count.data_ptr<int64_t>();
    if (sent == place) return;
    const int peer = host->lane().members[static_cast<std::size_t>(info.root)];
    host->world().fail(
        {CauseKind::Mismatch, -1,
         fmt::format("NCCL has no tags, and {} wants tag {} as message {} from rank {}, which sent "
                     "it as message {}; receive in the order of the sends",
                     host->world().describe(host->world().rank()), info.tag, place + 1, peer,
                     sent + 1)});
  };
}

}  // namespace trireme::comm::nccl
