#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using Kind = Instruction::Kind;

/// Parts that lie next to each other in the output.
struct PartRun {
  int first = 0, count = 0;
  Interval bytes = {};
};

/// `count` parts starting with part `first`, wrapping around at the end: one run, or two.
std::vector<PartRun> around(const RankView& me, int first, int count) {
  first %= me.size;
  const int before_end = std::min(count, me.size - first);
  const auto run = [&](int begin, int parts) -> PartRun {
    return {begin, parts, {me.out_part(begin).begin, me.out_part(begin + parts - 1).end}};
  };
  std::vector<PartRun> runs = {run(first, before_end)};
  if (before_end < count) runs.push_back(run(0, count - before_end));
  return runs;
}

}  // namespace

/// all_gather in about log2 n steps (Bruck): in each step a rank passes on all it has, so that each
/// rank has twice as much afterwards.
///
///              step 1: from rank + 1      step 2: from rank + 2
///   rank 0     0  ->  0 1                 ->  0 1 2 3
///   rank 1     1  ->  1 2                 ->  1 2 3 0
///   rank 2     2  ->  2 3                 ->  2 3 0 1
///   rank 3     3  ->  3 0                 ->  3 0 1 2
///
/// Parts go straight to their final place in the output, so no rotation is needed at the end.
CollectiveProgram doubling_all_gather(const RankView& me) {
  CollectiveProgram program;
  const Interval mine = me.out_part(me.rank);
  std::vector<int> filled_by(static_cast<std::size_t>(me.size), -1);  // by part: the instruction
  filled_by[static_cast<std::size_t>(me.rank)] =
      program.add({.kind = Kind::Copy, .target = out(mine), .sources = {in({0, mine.size()})}});
  int label = 0;
  for (int held = 1; held < me.size; held *= 2, label += 2) {
    const int count = std::min(held, me.size - held);
    const int to = (me.rank - held + me.size) % me.size, from = (me.rank + held) % me.size;
    std::vector<int> after;
    for (int i = 0; i < count; ++i) {
      const int filled = filled_by[static_cast<std::size_t>((me.rank + i) % me.size)];
      if (filled >= 0 && (after.empty() || after.back() != filled)) after.push_back(filled);
    }
    // Both ends cut the runs at the same place and so agree on the labels.
    int run_label = label;
    for (const PartRun& run : around(me, me.rank, count)) {
      const Instruction send{.kind = Kind::Send,
                             .peer = to,
                             .label = run_label++,
                             .target = out(run.bytes),
                             .after = after};
      if (run.bytes.size() > 0) program.add(send);
    }
    run_label = label;
    for (const PartRun& run : around(me, from, count)) {
      const Instruction recv{
          .kind = Kind::Recv, .peer = from, .label = run_label++, .target = out(run.bytes)};
      if (run.bytes.size() == 0) continue;
      const int arrived = program.add(recv);
      for (int part = run.first; part < run.first + run.count; ++part)
        filled_by[static_cast<std::size_t>(part)] = arrived;
    }
  }
  return program;
}

}  // namespace trireme::comm
