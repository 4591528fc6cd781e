// The formulas, written separately from the programs, so that a test can compare the two.
//
//               steps             bytes sent by rank r of n, for B bytes in slices b_0 .. b_(n-1)
//   one shot    1                 (n-1) B
//   direct      2 (all_reduce)    B - b_r + (n-1) b_r
//   ring        2(n-1)            2B - b_(r+1) - b_(r+2)
//   tree        2 floor(log2 n)   B to the parent, B to each child
//   doubling    about log2 n      all that it has, in each step (all_gather)
#include <algorithm>
#include <bit>

#include "trireme/comm/program.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

using core::Algorithm;
using core::OpKind;

int64_t slice_bytes(const LoweredOp& op, int size, int rank) {
  return slice(op.bytes / op.info.item_bytes, size, (rank + size) % size).size() *
         op.info.item_bytes;
}

int64_t part(const std::vector<int64_t>& begins, int size, int rank) {
  const auto i = static_cast<std::size_t>((rank + size) % size);
  return begins[i + 1] - begins[i];
}

/// Steps from the root of a binomial tree of n ranks to its farthest leaf: the most 1 bits in a
/// number below n.
int depth(int n) {
  return std::bit_width(static_cast<unsigned>(n)) - 1;
}

/// The number of children of `place` in a binomial tree of `size`: one for each distance below its
/// distance to its parent.
int children(int place, int size) {
  int count = 0;
  for (int distance = 1; distance < size && (place & distance) == 0; distance *= 2)
    count += place + distance < size;
  return count;
}

Cost direct(const LoweredOp& op, int rank, int size) {
  const bool is_root = rank == op.info.root;
  const int64_t others = size - 1;
  switch (op.info.kind) {
    case OpKind::AllReduce: {
      const int64_t own = slice_bytes(op, size, rank);
      return {2, op.bytes - own + others * own};
    }
    case OpKind::Broadcast: return {1, is_root ? others * op.bytes : 0};
    case OpKind::Reduce: return {1, is_root ? 0 : op.bytes};
    case OpKind::AllGather: return {1, others * part(op.out_begin, size, rank)};
    case OpKind::Gather: return {1, is_root ? 0 : part(op.out_begin, size, rank)};
    case OpKind::Scatter: return {1, is_root ? op.bytes - part(op.in_begin, size, rank) : 0};
    default: return {1, op.in_begin.back() - part(op.in_begin, size, rank)};
  }
}

Cost ring_cost(const LoweredOp& op, int rank, int size) {
  switch (op.info.kind) {
    case OpKind::AllReduce:
      return {2 * (size - 1),
              2 * op.bytes - slice_bytes(op, size, rank + 1) - slice_bytes(op, size, rank + 2)};
    case OpKind::AllGather: return {size - 1, op.bytes - part(op.out_begin, size, rank + 1)};
    default: return {size - 1, op.bytes - part(op.in_begin, size, rank)};
  }
}

/// Steps until a rank has that many parts if each step doubles them: log2, rounded up.
int doublings(int parts) {
  return std::bit_width(static_cast<unsigned>(parts - 1));
}

/// all_gather: a rank sends 1, 2, 4 ... parts, its own and those after it. The last step passes on
/// only what is missing and waits for no more than that.
Cost doubling(const LoweredOp& op, int rank, int size) {
  const int before_last = doublings(size) - 1;
  const int missing = size - (1 << before_last);
  Cost total{std::max(before_last, doublings(missing) + 1), 0};
  for (int held = 1; held < size; held *= 2) {
    for (int i = 0; i < std::min(held, size - held); ++i)
      total.sent_bytes += part(op.out_begin, size, rank + i);
  }
  return total;
}

Cost tree_cost(const LoweredOp& op, int rank, int size) {
  const OpKind kind = op.info.kind;
  if (kind == OpKind::AllGather) return doubling(op, rank, size);
  const bool has_root = kind == OpKind::Broadcast || kind == OpKind::Reduce;
  const int place = (rank - (has_root ? op.info.root : 0) + size) % size;
  const int64_t up = kind != OpKind::Broadcast && place != 0 ? op.bytes : 0;
  const int64_t down = kind != OpKind::Reduce ? children(place, size) * op.bytes : 0;
  return {(has_root ? 1 : 2) * depth(size), up + down};
}

// Measured over loopback on the two cores that docs/numbers.md was made on.
constexpr double kStepUs = 10;
constexpr double kMessageUs = 3;
constexpr double kByteUs = 0.35e-3;

/// The number of messages that the busiest rank sends and receives.
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

/// The bytes that the busiest rank sends or receives if all ranks have even shares.
int64_t busiest_bytes(const LoweredOp& op, Algorithm algorithm, int size) {
  const int64_t others = size - 1;
  const OpKind kind = op.info.kind;
  switch (algorithm) {
    case Algorithm::OneShot: return others * op.bytes;
    case Algorithm::Ring: return kind == OpKind::AllReduce ? 2 * op.bytes : op.bytes;
    case Algorithm::Tree:
      if (kind == OpKind::AllGather) return op.bytes;
      // The steps do not overlap: a rank passes nothing on before it has received everything.
      return (kind == OpKind::AllReduce ? 2 : 1) * depth(size) * op.bytes;
    default:
      if (kind == OpKind::Broadcast || kind == OpKind::Reduce) return others * op.bytes;
      return kind == OpKind::AllReduce ? 2 * op.bytes : op.bytes;
  }
}

}  // namespace

Cost cost(const LoweredOp& op, Algorithm algorithm, int rank, int size) {
  if (size == 1) return {};
  switch (algorithm) {
    case Algorithm::OneShot: return {1, (size - 1) * op.bytes};
    case Algorithm::Ring: return ring_cost(op, rank, size);
    case Algorithm::Tree: return tree_cost(op, rank, size);
    default: return direct(op, rank, size);
  }
}

double price_us(const LoweredOp& op, Algorithm algorithm, int size) {
  if (size == 1) return 0;
  const int root = std::max<int>(op.info.root, 0);
  return kStepUs * cost(op, algorithm, root, size).steps +
         kMessageUs * messages(op.info.kind, algorithm, size) +
         kByteUs * static_cast<double>(busiest_bytes(op, algorithm, size));
}

}  // namespace trireme::comm
