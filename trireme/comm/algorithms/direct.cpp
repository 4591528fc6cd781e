#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using Kind = Instruction::Kind;
using Memory = Operand::Memory;

constexpr int kChunksInFlight = 4;

/// This rank reduces `mine`, its slice, in rank order; the others send their data of it. Done in
/// chunks, so that reducing, sending and receiving overlap: at most kChunksInFlight chunks have
/// scratch memory at a time. Returns the index of each chunk's reduction.
std::vector<int> reduce_own(CollectiveProgram& program, const RankView& me, Interval mine,
                            Operand::Memory result, int64_t result_begin) {
  const int64_t slots = (me.size - 1) * kChunkBytes;
  const int64_t scratch = program.scratch_bytes;
  program.scratch_bytes +=
      std::min<int64_t>(kChunksInFlight, (mine.size() + kChunkBytes - 1) / kChunkBytes) * slots;
  std::vector<int> reductions;
  for (int chunk = 0; chunk * kChunkBytes < mine.size(); ++chunk) {
    const int64_t begin = mine.begin + chunk * kChunkBytes;
    const Interval range{begin, std::min(begin + kChunkBytes, mine.end)};
    Instruction reduce{.kind = Kind::Reduce,
                       .target = {result, range.begin - mine.begin + result_begin, range.size()}};
    int64_t slot = scratch + (chunk % kChunksInFlight) * slots;
    for (int rank = 0; rank < me.size; ++rank) {
      if (rank == me.rank) {
        reduce.sources.push_back(in(range));
        continue;
      }
      const Operand place{Memory::Scratch, slot, range.size()};
      slot += kChunkBytes;
      Instruction recv{.kind = Kind::Recv,
                       .peer = rank,
                       .total = mine.size(),
                       .label = 2 * chunk,
                       .target = place};
      if (chunk >= kChunksInFlight)
        recv.after = {reductions[static_cast<std::size_t>(chunk - kChunksInFlight)]};
      reduce.after.push_back(program.add(std::move(recv)));
      reduce.sources.push_back(place);
    }
    reductions.push_back(program.add(std::move(reduce)));
  }
  return reductions;
}

}  // namespace

/// Two steps, and as few bytes as a ring: rank r reduces slice r and sends the result to all.
///
///             slice 0  slice 1  slice 2
///   rank 0       +        >1       >2       +: reduces it     >r: sends its data of it to rank r
///   rank 1       >0       +        >2       then every + goes to the other two ranks
///   rank 2       >0       >1       +
CollectiveProgram direct_all_reduce(const RankView& me) {
  CollectiveProgram program;
  const auto reductions =
      reduce_own(program, me, me.slice_bytes(me.rank), Memory::Out, me.slice_bytes(me.rank).begin);
  for (int i = 1; i < me.size; ++i) {
    const int peer = (me.rank + i) % me.size;
    send_chunks(program, peer, Memory::In, me.slice_bytes(peer), 0);
    // In place: a chunk of the peer's result overwrites a chunk of this rank's input. The peer
    // cannot send it before it got that input, so no further ordering is needed.
    send_chunks(program, peer, Memory::Out, me.slice_bytes(me.rank), 1, reductions);
    recv_chunks(program, peer, me.slice_bytes(peer), 1);
  }
  return program;
}

CollectiveProgram direct_reduce_scatter(const RankView& me) {
  CollectiveProgram program;
  reduce_own(program, me, me.in_part(me.rank), Memory::Out, 0);
  for (int i = 1; i < me.size; ++i) {
    const int peer = (me.rank + i) % me.size;
    send_chunks(program, peer, Memory::In, me.in_part(peer), 0);
  }
  return program;
}

CollectiveProgram direct_reduce(const RankView& me) {
  CollectiveProgram program;
  const Interval all{0, me.op.bytes};
  if (me.rank == me.op.info.root)
    reduce_own(program, me, all, Memory::Out, 0);
  else
    send_chunks(program, me.op.info.root, Memory::In, all, 0);
  return program;
}

}  // namespace trireme::comm
