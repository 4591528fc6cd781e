#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using Kind = Instruction::Kind;
using Memory = Operand::Memory;

// A ring of 3 ranks that all-reduce slices a, b, c. Each rank sends to the next one, which adds
// what it receives to its own slice; after n - 1 steps each rank has one complete sum (*). The sums
// then go round the same way.
//
//            step 0          step 1          step 2           step 3
//   rank 0   sends a to 1    sends c to 1    sends b* to 1    sends a* to 1
//   rank 1   sends b to 2    sends a to 2    sends c* to 2    sends b* to 2
//   rank 2   sends c to 0    sends b to 0    sends a* to 0    sends c* to 0
//
// In general rank r sends slice r - s in step s.
void ring_reduce(CollectiveProgram& program, const RankView& me,
                 const std::vector<Interval>& slices, int first, std::vector<int>& latest) {
  int64_t widest = 0;
  for (const Interval& range : slices) widest = std::max(widest, range.size());
  const int64_t scratch = program.scratch_bytes;
  program.scratch_bytes += 2 * widest;
  int previous_fold = -1, fold_before = -1;
  for (int step = 0; step + 1 < me.size; ++step) {
    const auto sent = static_cast<std::size_t>((first - step + 2 * me.size) % me.size);
    const auto got = static_cast<std::size_t>((first - step - 1 + 2 * me.size) % me.size);
    Instruction send{
        .kind = Kind::Send, .peer = me.next(), .label = step, .target = in(slices[sent])};
    if (previous_fold >= 0) send.after = {previous_fold};
    program.add(std::move(send));
    const Operand place{Memory::Scratch, scratch + (step % 2) * widest, slices[got].size()};
    Instruction recv{.kind = Kind::Recv, .peer = me.previous(), .label = step, .target = place};
    if (fold_before >= 0) recv.after = {fold_before};
    const int arrived = program.add(std::move(recv));
    fold_before = previous_fold;
    previous_fold = program.add(
        {.kind = Kind::Fold, .target = in(slices[got]), .sources = {place}, .after = {arrived}});
    latest[got] = previous_fold;
  }
  if (me.mean()) {
    const auto own = static_cast<std::size_t>((first + 1) % me.size);
    latest[own] =
        program.add({.kind = Kind::Divide, .target = in(slices[own]), .after = {latest[own]}});
  }
}

/// Whole slices go round: in step s this rank passes on slice first - s. `latest`: by slice, the
/// instruction that must finish before the slice may be sent.
void ring_gather(CollectiveProgram& program, const RankView& me,
                 const std::vector<Interval>& slices, int first, std::vector<int> latest,
                 int label) {
  for (int step = 0; step + 1 < me.size; ++step) {
    const auto sent = static_cast<std::size_t>((first - step + 2 * me.size) % me.size);
    const auto got = static_cast<std::size_t>((first - step - 1 + 2 * me.size) % me.size);
    Instruction send{
        .kind = Kind::Send, .peer = me.next(), .label = label + step, .target = out(slices[sent])};
    if (latest[sent] >= 0) send.after = {latest[sent]};
    program.add(std::move(send));
    Instruction recv{.kind = Kind::Recv,
                     .peer = me.previous(),
                     .label = label + step,
                     .target = out(slices[got])};
    if (latest[got] >= 0) recv.after = {latest[got]};
    latest[got] = program.add(std::move(recv));
  }
}

std::vector<Interval> slices_of(const RankView& me) {
  std::vector<Interval> slices;
  for (int rank = 0; rank < me.size; ++rank) slices.push_back(me.slice_bytes(rank));
  return slices;
}

std::vector<int> nothing(const RankView& me) {
  return std::vector<int>(static_cast<std::size_t>(me.size), -1);
}

}  // namespace

CollectiveProgram ring_all_reduce(const RankView& me) {
  CollectiveProgram program;
  auto latest = nothing(me);
  ring_reduce(program, me, slices_of(me), me.rank, latest);
  ring_gather(program, me, slices_of(me), me.next(), latest, me.size);
  return program;
}

CollectiveProgram ring_all_gather(const RankView& me) {
  CollectiveProgram program;
  std::vector<Interval> parts;
  for (int rank = 0; rank < me.size; ++rank) parts.push_back(me.out_part(rank));
  auto latest = nothing(me);
  const Interval own = me.out_part(me.rank);
  latest[static_cast<std::size_t>(me.rank)] =
      program.add({.kind = Kind::Copy, .target = out(own), .sources = {in({0, own.size()})}});
  ring_gather(program, me, parts, me.rank, latest, 0);
  return program;
}

/// The input must not change, so the sums go round in a copy of it.
CollectiveProgram ring_reduce_scatter(const RankView& me) {
  std::vector<Interval> parts;
  for (int rank = 0; rank < me.size; ++rank) parts.push_back(me.in_part(rank));
  CollectiveProgram inner;
  inner.scratch_bytes = me.op.bytes;
  auto latest = nothing(me);
  const int copy = inner.add({.kind = Kind::Copy,
                              .target = {Memory::Scratch, 0, me.op.bytes},
                              .sources = {in({0, me.op.bytes})}});
  ring_reduce(inner, me, parts, me.previous(), latest);
  for (std::size_t i = 1; i < inner.instructions.size(); ++i) {
    Instruction& instruction = inner.instructions[i];
    if (instruction.target.memory == Memory::In) instruction.target.memory = Memory::Scratch;
    if (instruction.kind != Kind::Recv) instruction.after.push_back(copy);
  }
  const Interval own = me.in_part(me.rank);
  inner.add({.kind = Kind::Copy,
             .target = out({0, own.size()}),
             .sources = {{Memory::Scratch, own.begin, own.size()}},
             .after = {latest[static_cast<std::size_t>(me.rank)]}});
  return inner;
}

}  // namespace trireme::comm
