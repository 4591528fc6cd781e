#pragma once

#include <algorithm>

#include "trireme/comm/kernels.h"
#include "trireme/comm/program.h"

namespace trireme::comm {

/// One rank's view of a collective: the operation, its rank, and its parts of the data.
struct RankView {
  const LoweredOp& op;
  int rank, size;

  Interval slice_bytes(int of) const {
    const int64_t item = op.info.item_bytes;
    const Interval elems = slice(op.bytes / item, size, of);
    return {elems.begin * item, elems.end * item};
  }
  Interval in_part(int of) const {
    return {op.in_begin[static_cast<std::size_t>(of)],
            op.in_begin[static_cast<std::size_t>(of) + 1]};
  }
  Interval out_part(int of) const {
    return {op.out_begin[static_cast<std::size_t>(of)],
            op.out_begin[static_cast<std::size_t>(of) + 1]};
  }
  bool mean() const { return op.info.reduce == core::ReduceOp::Mean; }
  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
};

inline Operand in(Interval range) {
  return {Operand::Memory::In, range.begin, range.size()};
}
inline Operand out(Interval range) {
  return {Operand::Memory::Out, range.begin, range.size()};
}

/// Large messages travel in chunks, so that reducing, sending and receiving overlap.
constexpr int64_t kChunkBytes = 512 << 10;

/// What to do for an empty range: nothing if both ends know that it is empty, else send a message.
enum class Empty : uint8_t { Skip, Send };

/// Sends `range` to `peer` chunk by chunk; chunk c waits for instruction after[c].
void send_chunks(CollectiveProgram& program, int peer, Operand::Memory memory, Interval range,
                 int phase, const std::vector<int>& after = {}, Empty empty = Empty::Skip);
/// Receives the chunks into the output.
void recv_chunks(CollectiveProgram& program, int peer, Interval range, int phase,
                 Empty empty = Empty::Skip);

// The algorithms, one per file. Each returns what this rank does; `make_program` calls the right
// one.
CollectiveProgram one_shot(const RankView& me);
CollectiveProgram direct_all_reduce(const RankView& me);
CollectiveProgram direct_reduce_scatter(const RankView& me);
CollectiveProgram direct_reduce(const RankView& me);
CollectiveProgram exchange(const RankView& me);
CollectiveProgram ring_all_reduce(const RankView& me);
CollectiveProgram ring_all_gather(const RankView& me);
CollectiveProgram doubling_all_gather(const RankView& me);
CollectiveProgram ring_reduce_scatter(const RankView& me);
CollectiveProgram tree(const RankView& me);

}  // namespace trireme::comm
