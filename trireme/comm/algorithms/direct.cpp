#include "trireme/comm/algorithms/part.h"

namespace trireme::comm {

namespace {

using Kind = Action::Kind;
using Memory = Place::Memory;

constexpr int kChunksInFlight = 4;

/// Rank r reduces `mine`, its slice, in the order of ranks; the others send it theirs. By chunks,
/// so that reducing, sending and receiving overlap. Returns the index of each chunk's reduction.
std::vector<int> reduce_own(Program& program, const Part& me, Range mine, Place::Memory result,
                            int64_t result_begin) {
  const int64_t slots = (me.size - 1) * kChunkBytes;
  const int64_t scratch = program.scratch_bytes;
  program.scratch_bytes +=
      std::min<int64_t>(kChunksInFlight, (mine.size() + kChunkBytes - 1) / kChunkBytes) * slots;
  std::vector<int> reductions;
  for (int chunk = 0; chunk * kChunkBytes < mine.size(); ++chunk) {
    const int64_t begin = mine.begin + chunk * kChunkBytes;
    const Range range{begin, std::min(begin + kChunkBytes, mine.end)};
    Action reduce{.kind = Kind::Reduce,
                  .place = {result, range.begin - mine.begin + result_begin, range.size()}};
    int64_t slot = scratch + (chunk % kChunksInFlight) * slots;
    for (int rank = 0; rank < me.size; ++rank) {
      if (rank == me.rank) {
        reduce.sources.push_back(in(range));
        continue;
      }
      const Place place{Memory::Scratch, slot, range.size()};
      slot += kChunkBytes;
      Action recv{.kind = Kind::Recv,
                  .peer = rank,
                  .total = mine.size(),
                  .label = 2 * chunk,
                  .place = place};
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

/// Rank r reduces slice r and sends the result to all: two steps, the bytes of a ring.
Program direct_all_reduce(const Part& me) {
  Program program;
  const auto reductions =
      reduce_own(program, me, me.slice_bytes(me.rank), Memory::Out, me.slice_bytes(me.rank).begin);
  for (int i = 1; i < me.size; ++i) {
    const int peer = (me.rank + i) % me.size;
    send_chunks(program, peer, Memory::In, me.slice_bytes(peer), 0);
    // In place: a chunk of the peer's result lands where a chunk of this rank's input was. It
    // cannot come before the peer got that input, so nothing more need order the two.
    send_chunks(program, peer, Memory::Out, me.slice_bytes(me.rank), 1, reductions);
    recv_chunks(program, peer, me.slice_bytes(peer), 1);
  }
  return program;
}

Program direct_reduce_scatter(const Part& me) {
  Program program;
  reduce_own(program, me, me.in_part(me.rank), Memory::Out, 0);
  for (int i = 1; i < me.size; ++i) {
    const int peer = (me.rank + i) % me.size;
    send_chunks(program, peer, Memory::In, me.in_part(peer), 0);
  }
  return program;
}

Program direct_reduce(const Part& me) {
  Program program;
  const Range all{0, me.job.bytes};
  if (me.rank == me.job.info.root)
    reduce_own(program, me, all, Memory::Out, 0);
  else
    send_chunks(program, me.job.info.root, Memory::In, all, 0);
  return program;
}

}  // namespace trireme::comm
