#include "trireme/comm/algorithms/part.h"

namespace trireme::comm {

namespace {

using core::OpKind;
using Kind = Action::Kind;
using Memory = Place::Memory;

}  // namespace

/// Everyone sends everything to everyone, and reduces for itself: one step.
Program one_shot(const Part& me) {
  Program program;
  const Range all{0, me.job.bytes};
  Action reduce{.kind = Kind::Reduce, .place = out(all)};
  for (int rank = 0; rank < me.size; ++rank) {
    if (rank == me.rank) {
      reduce.sources.push_back(in(all));
      continue;
    }
    const Place scratch{Memory::Scratch, program.scratch_bytes, me.job.bytes};
    program.scratch_bytes += me.job.bytes;
    // Input and output are the same memory: it must be sent before it is overwritten.
    reduce.after.push_back(program.add({.kind = Kind::Send, .peer = rank, .place = in(all)}));
    reduce.after.push_back(program.add({.kind = Kind::Recv, .peer = rank, .place = scratch}));
    reduce.sources.push_back(scratch);
  }
  if (me.job.info.kind != OpKind::Barrier) program.add(std::move(reduce));
  return program;
}

}  // namespace trireme::comm
