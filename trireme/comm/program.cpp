#include "trireme/comm/program.h"

#include <algorithm>

#include "trireme/comm/algorithms/rank_view.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

using core::Algorithm;
using core::OpKind;

constexpr int64_t kOneShotBytes = 32 << 10;
constexpr int kRankOrderRanks = 32;

}  // namespace

Interval slice(int64_t count, int size, int rank) {
  constexpr int64_t kAlign = 16;
  const int64_t each = (count + size * kAlign - 1) / (size * kAlign) * kAlign;
  return {std::min(count, rank * each), std::min(count, (rank + 1) * each)};
}

int CollectiveProgram::add(Instruction instruction) {
  instructions.push_back(std::move(instruction));
  return static_cast<int>(instructions.size()) - 1;
}

bool has_algorithm(OpKind kind, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Auto: return true;
    case Algorithm::OneShot: return kind == OpKind::AllReduce || kind == OpKind::Barrier;
    case Algorithm::Direct: return kind != OpKind::Barrier;
    case Algorithm::Ring:
      return kind == OpKind::AllReduce || kind == OpKind::AllGather ||
             kind == OpKind::ReduceScatter;
    case Algorithm::Tree:
      return kind == OpKind::AllReduce || kind == OpKind::Broadcast || kind == OpKind::Reduce ||
             kind == OpKind::AllGather || kind == OpKind::Barrier;
  }
  return false;
}

Algorithm pick(const LoweredOp& op, int size) {
  const OpKind kind = op.info.kind;
  if (op.info.algorithm != Algorithm::Auto) return op.info.algorithm;
  const bool adds =
      kind == OpKind::AllReduce || kind == OpKind::Reduce || kind == OpKind::ReduceScatter;
  if (adds && size <= kRankOrderRanks) {
    const bool small = kind == OpKind::AllReduce && op.bytes * (size - 1) <= kOneShotBytes;
    return small ? Algorithm::OneShot : Algorithm::Direct;
  }
  Algorithm best = kind == OpKind::Barrier ? Algorithm::OneShot : Algorithm::Direct;
  for (const Algorithm other : {Algorithm::OneShot, Algorithm::Ring, Algorithm::Tree}) {
    if (has_algorithm(kind, other) && price_us(op, other, size) < price_us(op, best, size))
      best = other;
  }
  return best;
}

CollectiveProgram make_program(const LoweredOp& op, Algorithm algorithm, int rank, int size) {
  const RankView me{op, rank, size};
  const OpKind kind = op.info.kind;
  core::check(has_algorithm(kind, algorithm) && algorithm != Algorithm::Auto,
              "{} has no algorithm '{}'", to_string(kind), to_string(algorithm));
  switch (algorithm) {
    case Algorithm::OneShot: return one_shot(me);
    case Algorithm::Tree: return kind == OpKind::AllGather ? doubling_all_gather(me) : tree(me);
    case Algorithm::Ring:
      if (kind == OpKind::AllReduce) return ring_all_reduce(me);
      return kind == OpKind::AllGather ? ring_all_gather(me) : ring_reduce_scatter(me);
    default:
      if (kind == OpKind::AllReduce) return direct_all_reduce(me);
      if (kind == OpKind::ReduceScatter) return direct_reduce_scatter(me);
      if (kind == OpKind::Reduce) return direct_reduce(me);
      return exchange(me);
  }
}

}  // namespace trireme::comm
