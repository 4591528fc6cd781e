#include "trireme/comm/algorithms/part.h"

namespace trireme::comm {

namespace {

using core::OpKind;
using Kind = Action::Kind;
using Memory = Place::Memory;

}  // namespace

/// Moves without arithmetic: what this rank sends to and takes from each rank.
Program exchange(const Part& me) {
  Program program;
  const OpKind kind = me.job.info.kind;
  const int root = me.job.info.root;
  const bool is_root = me.rank == root;
  const auto sends_to = [&](int peer) -> Range {
    switch (kind) {
      case OpKind::Broadcast: return is_root ? Range{0, me.job.bytes} : Range{};
      case OpKind::AllGather: return {0, me.out_part(me.rank).size()};
      case OpKind::Gather: return peer == root ? Range{0, me.out_part(me.rank).size()} : Range{};
      case OpKind::Scatter: return is_root ? me.in_part(peer) : Range{};
      default: return me.in_part(peer);
    }
  };
  const auto takes_from = [&](int peer) -> Range {
    switch (kind) {
      case OpKind::Broadcast: return peer == root ? Range{0, me.job.bytes} : Range{};
      case OpKind::Gather: return is_root ? me.out_part(peer) : Range{};
      case OpKind::Scatter: return peer == root ? Range{0, me.in_part(me.rank).size()} : Range{};
      default: return me.out_part(peer);
    }
  };
  // Only in an all_to_all does each end say for itself how much goes between two ranks: a message
  // that says 0 is what tells one that expected more.
  const Empty empty = kind == OpKind::AllToAll ? Empty::Send : Empty::Skip;
  if (kind != OpKind::Broadcast && takes_from(me.rank).size() > 0)
    program.add({.kind = Kind::Copy,
                 .place = out(takes_from(me.rank)),
                 .sources = {in(sends_to(me.rank))}});
  for (int i = 1; i < me.size; ++i) {
    const int to = (me.rank + i) % me.size, from = (me.rank - i + me.size) % me.size;
    send_chunks(program, to, Memory::In, sends_to(to), 0, {}, empty);
    recv_chunks(program, from, takes_from(from), 0, empty);
  }
  return program;
}

}  // namespace trireme::comm
