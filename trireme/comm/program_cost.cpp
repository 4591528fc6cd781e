// The formulas, written apart from the programs so that a test can hold one against the other.
//
//               steps             bytes sent by rank r of n, for B bytes in slices b_0 .. b_(n-1)
//   one shot    1                 (n-1) B
//   direct      2 (all_reduce)    B - b_r + (n-1) b_r
//   ring        2(n-1)            2B - b_(r+1) - b_(r+2)
//   tree        2 floor(log2 n)   B to the parent, B to each child
#include <bit>

#include "trireme/comm/program.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

using core::Algorithm;
using core::OpKind;

int64_t slice_bytes(const Job& job, int size, int rank) {
  return slice(job.bytes / job.info.item_bytes, size, (rank + size) % size).size() *
         job.info.item_bytes;
}

int64_t part(const std::vector<int64_t>& begins, int size, int rank) {
  const auto i = static_cast<std::size_t>((rank + size) % size);
  return begins[i + 1] - begins[i];
}

/// Between the root of a binomial tree and its farthest leaf: the most ones in a number below n.
int depth(int n) {
  return std::bit_width(static_cast<unsigned>(n)) - 1;
}

/// Children of `place` in a binomial tree of `size`: one for each distance below its own.
int children(int place, int size) {
  int count = 0;
  for (int distance = 1; distance < size && (place & distance) == 0; distance *= 2)
    count += place + distance < size;
  return count;
}

Cost direct(const Job& job, int rank, int size) {
  const bool is_root = rank == job.info.root;
  const int64_t others = size - 1;
  switch (job.info.kind) {
    case OpKind::AllReduce: {
      const int64_t own = slice_bytes(job, size, rank);
      return {2, job.bytes - own + others * own};
    }
    case OpKind::Broadcast: return {1, is_root ? others * job.bytes : 0};
    case OpKind::Reduce: return {1, is_root ? 0 : job.bytes};
    case OpKind::AllGather: return {1, others * part(job.out_begin, size, rank)};
    case OpKind::Gather: return {1, is_root ? 0 : part(job.out_begin, size, rank)};
    case OpKind::Scatter: return {1, is_root ? job.bytes - part(job.in_begin, size, rank) : 0};
    default: return {1, job.in_begin.back() - part(job.in_begin, size, rank)};
  }
}

Cost ring(const Job& job, int rank, int size) {
  switch (job.info.kind) {
    case OpKind::AllReduce:
      return {2 * (size - 1),
              2 * job.bytes - slice_bytes(job, size, rank + 1) - slice_bytes(job, size, rank + 2)};
    case OpKind::AllGather: return {size - 1, job.bytes - part(job.out_begin, size, rank + 1)};
    default: return {size - 1, job.bytes - part(job.in_begin, size, rank)};
  }
}

Cost tree(const Job& job, int rank, int size) {
  const bool all = job.info.kind == OpKind::AllReduce;
  const int place = (rank - (all ? 0 : job.info.root) + size) % size;
  const int64_t up = job.info.kind != OpKind::Broadcast && place != 0 ? job.bytes : 0;
  const int64_t down = job.info.kind != OpKind::Reduce ? children(place, size) * job.bytes : 0;
  return {(all ? 2 : 1) * depth(size), up + down};
}

}  // namespace

Cost cost(const Job& job, Algorithm algorithm, int rank, int size) {
  if (size == 1) return {};
  switch (algorithm) {
    case Algorithm::OneShot: return {1, (size - 1) * job.bytes};
    case Algorithm::Ring: return ring(job, rank, size);
    case Algorithm::Tree: return tree(job, rank, size);
    default: return direct(job, rank, size);
  }
}

}  // namespace trireme::comm
