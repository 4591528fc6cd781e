#pragma once

#include <algorithm>

#include "trireme/comm/kernels.h"
#include "trireme/comm/program.h"

namespace trireme::comm {

/// Who this rank is, and what it is asked for.
struct Part {
  const Job& job;
  int rank, size;

  Range slice_bytes(int of) const {
    const int64_t item = job.info.item_bytes;
    const Range elems = slice(job.bytes / item, size, of);
    return {elems.begin * item, elems.end * item};
  }
  Range in_part(int of) const {
    return {job.in_begin[static_cast<std::size_t>(of)],
            job.in_begin[static_cast<std::size_t>(of) + 1]};
  }
  Range out_part(int of) const {
    return {job.out_begin[static_cast<std::size_t>(of)],
            job.out_begin[static_cast<std::size_t>(of) + 1]};
  }
  bool mean() const { return job.info.reduce == core::ReduceOp::Mean; }
  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
};

inline Place in(Range range) {
  return {Place::Memory::In, range.begin, range.size()};
}
inline Place out(Range range) {
  return {Place::Memory::Out, range.begin, range.size()};
}

/// Large messages go by chunks, so that reducing, sending and receiving overlap.
constexpr int64_t kChunkBytes = 512 << 10;

/// May both ends know that a range is empty? Then nothing is sent for it.
enum class Empty : uint8_t { Skip, Send };

/// Sends chunk after chunk of `range` to `peer`; chunk c not before after[c] has finished.
void send_chunks(Program& program, int peer, Place::Memory memory, Range range, int phase,
                 const std::vector<int>& after = {}, Empty empty = Empty::Skip);
/// Takes them, into the output.
void recv_chunks(Program& program, int peer, Range range, int phase, Empty empty = Empty::Skip);

// The algorithms, one to a file: what this rank does. `make_program` picks.
Program one_shot(const Part& me);
Program direct_all_reduce(const Part& me);
Program direct_reduce_scatter(const Part& me);
Program direct_reduce(const Part& me);
Program exchange(const Part& me);
Program ring_all_reduce(const Part& me);
Program ring_all_gather(const Part& me);
Program doubling_all_gather(const Part& me);
Program ring_reduce_scatter(const Part& me);
Program tree(const Part& me);

}  // namespace trireme::comm
