#include "trireme/comm/nccl/calls.h"

#include "trireme/core/error.h"

namespace trireme::comm::nccl {

namespace {

using core::DType;
using core::OpKind;
using core::ReduceOp;
using Kind = Call::Kind;
using Place = Call::Place;
using Side = Place::Side;

Place in(int64_t at_bytes = 0) {
  return {Side::In, at_bytes};
}
Place out(int64_t at_bytes = 0) {
  return {Side::Out, at_bytes};
}

bool is_even(const std::vector<int64_t>& begin) {
  for (std::size_t rank = 1; rank < begin.size(); ++rank) {
    if (begin[rank] - begin[rank - 1] != begin[1] - begin[0]) return false;
  }
  return true;
}

/// Adds a call for the part of every rank that has one. `begin`: where the parts begin.
template <class Make>
void for_each_part(const std::vector<int64_t>& begin, Make make) {
  for (std::size_t rank = 0; rank + 1 < begin.size(); ++rank) {
    const int64_t bytes = begin[rank + 1] - begin[rank];
    if (bytes > 0) make(static_cast<int>(rank), begin[rank], bytes);
  }
}

std::vector<Call> gather_all(const LoweredOp& op, int rank) {
  if (is_even(op.out_begin)) return {{Kind::AllGather, in(), out(), op.out_begin[1]}};
  std::vector<Call> calls;
  for_each_part(op.out_begin, [&](int root, int64_t begin, int64_t bytes) {
    calls.push_back({.kind = Kind::Broadcast,
                     .from = root == rank ? in() : out(begin),
                     .to = out(begin),
                     .count = bytes,
                     .peer = root});
  });
  return calls;
}

std::vector<Call> reduce_parts(const LoweredOp& op, int rank) {
  const core::OpInfo& info = op.info;
  if (is_even(op.in_begin))
    return {{Kind::ReduceScatter, in(), out(), op.in_begin[1] / info.item_bytes, info.dtype,
             info.reduce}};
  std::vector<Call> calls;
  for_each_part(op.in_begin, [&](int root, int64_t begin, int64_t bytes) {
    calls.push_back({Kind::Reduce, in(begin), root == rank ? out() : in(begin),
                     bytes / info.item_bytes, info.dtype, info.reduce, root});
  });
  return calls;
}

void add_sends(std::vector<Call>& calls, const std::vector<int64_t>& begin) {
  for_each_part(begin, [&](int peer, int64_t at, int64_t bytes) {
    calls.push_back({.kind = Kind::Send, .from = in(at), .count = bytes, .peer = peer});
  });
}

void add_receives(std::vector<Call>& calls, const std::vector<int64_t>& begin) {
  for_each_part(begin, [&](int peer, int64_t at, int64_t bytes) {
    calls.push_back({.kind = Kind::Recv, .to = out(at), .count = bytes, .peer = peer});
  });
}

/// What one rank sends to, or receives from, the root of a gather or scatter.
void add_own_part(std::vector<Call>& calls, Kind kind, const std::vector<int64_t>& begin, int rank,
                  int root) {
  const auto me = static_cast<std::size_t>(rank);
  const int64_t bytes = begin[me + 1] - begin[me];
  if (bytes == 0) return;
  calls.push_back({.kind = kind,
                   .from = in(),
                   .to = kind == Kind::Recv ? out() : in(),
                   .count = bytes,
                   .peer = root});
}

int type_of(DType dtype) {
  switch (dtype) {
    case DType::Float32: return Library::kFloat32;
    case DType::Float64: return Library::kFloat64;
    case DType::Float16: return Library::kFloat16;
    case DType::BFloat16: return Library::kBFloat16;
    case DType::Int32: return Library::kInt32;
    case DType::Int64: return Library::kInt64;
    case DType::UInt8: return Library::kUInt8;
    case DType::Other: break;
  }
  throw MisuseError("NCCL cannot reduce this dtype");
}

int reduction_of(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::Sum: return Library::kSum;
    case ReduceOp::Mean: return Library::kMean;
    case ReduceOp::Max: return Library::kMax;
    case ReduceOp::Min: return Library::kMin;
    case ReduceOp::Product: return Library::kProduct;
  }
  return Library::kSum;
}

int make_call(const Call& call, std::byte* input, std::byte* output, Library::Comm comm,
              Library::Stream stream) {
  const Library& nccl = Library::get();
  const auto at = [&](const Place& place) {
    return (place.side == Side::In ? input : output) + place.at_bytes;
  };
  const auto count = static_cast<std::size_t>(call.count);
  const int type = type_of(call.dtype), reduction = reduction_of(call.reduce);
  switch (call.kind) {
    case Kind::AllReduce:
      return nccl.all_reduce(at(call.from), at(call.to), count, type, reduction, comm, stream);
    case Kind::Broadcast:
      return nccl.broadcast(at(call.from), at(call.to), count, type, call.peer, comm, stream);
    case Kind::Reduce:
      return nccl.reduce(at(call.from), at(call.to), count, type, reduction, call.peer, comm,
                         stream);
    case Kind::AllGather:
      return nccl.all_gather(at(call.from), at(call.to), count, type, comm, stream);
    case Kind::ReduceScatter:
      return nccl.reduce_scatter(at(call.from), at(call.to), count, type, reduction, comm, stream);
    case Kind::Send: return nccl.send(at(call.from), count, type, call.peer, comm, stream);
    case Kind::Recv: return nccl.recv(at(call.to), count, type, call.peer, comm, stream);
  }
  return Library::kSuccess;
}

}  // namespace

std::vector<Call> calls_of(const LoweredOp& op, int rank) {
  const core::OpInfo& info = op.info;
  const bool is_root = info.root == rank;
  std::vector<Call> calls;
  // An all-to-all may have nothing to send and something to receive.
  if (op.bytes == 0 && info.kind != OpKind::AllToAll) return calls;
  switch (info.kind) {
    case OpKind::AllReduce:
      return {{Kind::AllReduce, in(), out(), op.bytes / info.item_bytes, info.dtype, info.reduce}};
    case OpKind::Broadcast:
      return {{.kind = Kind::Broadcast,
               .from = in(),
               .to = out(),
               .count = op.bytes,
               .peer = info.root}};
    case OpKind::Reduce:
      return {{Kind::Reduce, in(), out(), op.bytes / info.item_bytes, info.dtype, info.reduce,
               info.root}};
    case OpKind::AllGather: return gather_all(op, rank);
    case OpKind::ReduceScatter: return reduce_parts(op, rank);
    case OpKind::AllToAll:
      add_sends(calls, op.in_begin);
      add_receives(calls, op.out_begin);
      return calls;
    case OpKind::Gather:
      add_own_part(calls, Kind::Send, op.out_begin, rank, info.root);
      if (is_root) add_receives(calls, op.out_begin);
      return calls;
    case OpKind::Scatter:
      if (is_root) add_sends(calls, op.in_begin);
      add_own_part(calls, Kind::Recv, op.in_begin, rank, info.root);
      return calls;
    case OpKind::Send: return {{.kind = Kind::Send, .from = in(), .count = op.bytes, .peer = 1}};
    case OpKind::Recv: return {{.kind = Kind::Recv, .to = out(), .count = op.bytes, .peer = 0}};
    case OpKind::Barrier: break;
  }
  return calls;
}

std::string to_string(const Call& call) {
  constexpr const char* kNames[] = {"all_reduce",     "broadcast", "reduce", "all_gather",
                                    "reduce_scatter", "send",      "recv"};
  const auto place = [](const Place& where) {
    return fmt::format("{}+{}", where.side == Side::In ? "in" : "out", where.at_bytes);
  };
  std::string text = kNames[static_cast<int>(call.kind)];
  if (call.kind != Kind::Recv) text += " " + place(call.from);
  if (call.kind != Kind::Send) text += " -> " + place(call.to);
  text += fmt::format(", {} {}", call.count, core::to_string(call.dtype));
  if (call.kind == Kind::AllReduce || call.kind == Kind::Reduce || call.kind == Kind::ReduceScatter)
    text += fmt::format(" {}", core::to_string(call.reduce));
  if (call.peer >= 0) text += fmt::format(", rank {}", call.peer);
  return text;
}

int make_calls(const std::vector<Call>& calls, std::byte* input, std::byte* output,
               Library::Comm comm, Library::Stream stream) {
  if (calls.size() == 1) return make_call(calls[0], input, output, comm, stream);
  const Library& nccl = Library::get();
  int result = nccl.group_start();
  for (const Call& call : calls) {
    const int one = make_call(call, input, output, comm, stream);
    if (one != Library::kSuccess && one != Library::kInProgress) result = one;
  }
  const int end = nccl.group_end();  // always: a group that is open would swallow what follows
  return result == Library::kSuccess ? end : result;
}

}  // namespace trireme::comm::nccl
