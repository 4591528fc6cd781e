#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using core::OpKind;

}  // namespace

/// Operations that only move data: this rank sends a range to each rank and receives one from each.
CollectiveProgram exchange(const RankView& me) {
  CollectiveProgram program;
  const OpKind kind = me.op.info.kind;
  const int root = me.op.info.root;
  const bool is_root = me.rank == root;
  const auto sends_to = [&](int peer) -> Interval {
    switch (kind) {
      case OpKind::Broadcast: return is_root ? Interval{0, me.op.bytes} : Interval{};
      case OpKind::AllGather: return {0, me.out_part(me.rank).size()};
      case OpKind::Gather:
        return peer == root ? Interval{0, me.out_part(me.rank).size()} : Interval{};
      case OpKind::Scatter: return is_root ? me.in_part(peer) : Interval{};
      default: return me.in_part(peer);
    }
  };
  const auto takes_from = [&](int peer) -> Interval {
    switch (kind) {
      case OpKind::Broadcast: return peer == root ? Interval{0, me.op.bytes} : Interval{};
      case OpKind::Gather: return is_root ? me.out_part(peer) : Interval{};
      case OpKind::Scatter:
        return peer == root ? Interval{0, me.in_part(me.rank).size()} : Interval{};
      default: return me.out_part(peer);
    }
  };
  // Only in an all_to_all do both ends choose the size of a transfer. A message of 0 bytes tells a
  // rank that expected more that they disagree.
  const Empty empty = kind == OpKind::AllToAll ? Empty::Send : Empty::Skip;
  if (kind != OpKind::Broadcast && takes_from(me.rank).size() > 0)
    program.add({.kind = Instruction::Kind::Copy,
                 .target = out(takes_from(me.rank)),
                 .sources = {in(sends_to(me.rank))}});
  for (int i = 1; i < me.size; ++i) {
    const int to = (me.rank + i) % me.size, from = (me.rank - i + me.size) % me.size;
    send_chunks(program, to, Operand::Memory::In, sends_to(to), 0, {}, empty);
    recv_chunks(program, from, takes_from(from), 0, empty);
  }
  return program;
}

}  // namespace trireme::comm
