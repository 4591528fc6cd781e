#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using Kind = Instruction::Kind;

}  // namespace

/// Every rank sends all its data to every other rank and reduces everything itself: one step.
CollectiveProgram one_shot(const RankView& me) {
  CollectiveProgram program;
  const Interval all{0, me.op.bytes};
  Instruction reduce{.kind = Kind::Reduce, .target = out(all)};
  for (int rank = 0; rank < me.size; ++rank) {
    if (rank == me.rank) {
      reduce.sources.push_back(in(all));
      continue;
    }
    const Operand scratch{Operand::Memory::Scratch, program.scratch_bytes, me.op.bytes};
    program.scratch_bytes += me.op.bytes;
    // Input and output are the same memory, so it must be sent before it is overwritten.
    reduce.after.push_back(program.add({.kind = Kind::Send, .peer = rank, .target = in(all)}));
    reduce.after.push_back(program.add({.kind = Kind::Recv, .peer = rank, .target = scratch}));
    reduce.sources.push_back(scratch);
  }
  if (me.op.info.kind != core::OpKind::Barrier) program.add(std::move(reduce));
  return program;
}

}  // namespace trireme::comm
