// The formulas, written apart from the programs so that a test can hold one against the other.
//
//               steps             bytes sent by rank r of n, for B bytes in slices b_0 .. b_(n-1)
//   one shot    1                 (n-1) B
//   direct      2 (all_reduce)    B - b_r + (n-1) b_r
//   ring        2(n-1)            2B - b_(r+1) - b_(r+2)
//   tree        2 floor(log2 n)   B to the parent, B to each child
//   doubling    about log2 n      what it holds, in each step (all_gather)
#include <algorithm>
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

Cost ring_cost(const Job& job, int rank, int size) {
  switch (job.info.kind) {
    case OpKind::AllReduce:
      return {2 * (size - 1),
              2 * job.bytes - slice_bytes(job, size, rank + 1) - slice_bytes(job, size, rank + 2)};
    case OpKind::AllGather: return {size - 1, job.bytes - part(job.out_begin, size, rank + 1)};
    default: return {size - 1, job.bytes - part(job.in_begin, size, rank)};
  }
}

/// Steps until a rank holds that many parts, when each doubles them: log2, rounded up.
int doublings(int parts) {
  return std::bit_width(static_cast<unsigned>(parts - 1));
}

/// all_gather: 1, 2, 4 ... parts, its own and those after it. The last step passes on only what is
/// missing, and needs not wait for more than that.
Cost doubling(const Job& job, int rank, int size) {
  const int before_last = doublings(size) - 1;
  const int missing = size - (1 << before_last);
  Cost total{std::max(before_last, doublings(missing) + 1), 0};
  for (int held = 1; held < size; held *= 2) {
    for (int i = 0; i < std::min(held, size - held); ++i)
      total.sent_bytes += part(job.out_begin, size, rank + i);
  }
  return total;
}

Cost tree_cost(const Job& job, int rank, int size) {
  const OpKind kind = job.info.kind;
  if (kind == OpKind::AllGather) return doubling(job, rank, size);
  const bool has_root = kind == OpKind::Broadcast || kind == OpKind::Reduce;
  const int place = (rank - (has_root ? job.info.root : 0) + size) % size;
  const int64_t up = kind != OpKind::Broadcast && place != 0 ? job.bytes : 0;
  const int64_t down = kind != OpKind::Reduce ? children(place, size) * job.bytes : 0;
  return {(has_root ? 1 : 2) * depth(size), up + down};
}

// Measured over loopback on the two cores that docs/numbers.md was made on.
constexpr double kStepUs = 10;
constexpr double kMessageUs = 3;
constexpr double kByteUs = 0.35e-3;

/// Messages that the busiest rank sends and receives.
int messages(OpKind kind, Algorithm algorithm, int size) {
  const int others = size - 1;
  const bool has_root = kind == OpKind::Broadcast || kind == OpKind::Reduce ||
                        kind == OpKind::Gather || kind == OpKind::Scatter;
  switch (algorithm) {
    case Algorithm::OneShot: return 2 * others;
    case Algorithm::Ring: return (kind == OpKind::AllReduce ? 4 : 2) * others;
    case Algorithm::Tree: return (has_root ? 1 : 2) * doublings(size);
    default: return has_root ? others : (kind == OpKind::AllReduce ? 4 : 2) * others;
  }
}

/// Bytes that the busiest rank sends or receives, where no rank has more than its share.
int64_t busiest_bytes(const Job& job, Algorithm algorithm, int size) {
  const int64_t others = size - 1;
  const OpKind kind = job.info.kind;
  switch (algorithm) {
    case Algorithm::OneShot: return others * job.bytes;
    case Algorithm::Ring: return kind == OpKind::AllReduce ? 2 * job.bytes : job.bytes;
    case Algorithm::Tree:
      if (kind == OpKind::AllGather) return job.bytes;
      // One step after the other: nothing is passed on before all of it has come.
      return (kind == OpKind::AllReduce ? 2 : 1) * depth(size) * job.bytes;
    default:
      if (kind == OpKind::Broadcast || kind == OpKind::Reduce) return others * job.bytes;
      return kind == OpKind::AllReduce ? 2 * job.bytes : job.bytes;
  }
}

}  // namespace

Cost cost(const Job& job, Algorithm algorithm, int rank, int size) {
  if (size == 1) return {};
  switch (algorithm) {
    case Algorithm::OneShot: return {1, (size - 1) * job.bytes};
    case Algorithm::Ring: return ring_cost(job, rank, size);
    case Algorithm::Tree: return tree_cost(job, rank, size);
    default: return direct(job, rank, size);
  }
}

double price_us(const Job& job, Algorithm algorithm, int size) {
  if (size == 1) return 0;
  const int root = std::max<int>(job.info.root, 0);
  return kStepUs * cost(job, algorithm, root, size).steps +
         kMessageUs * messages(job.info.kind, algorithm, size) +
         kByteUs * static_cast<double>(busiest_bytes(job, algorithm, size));
}

}  // namespace trireme::comm
