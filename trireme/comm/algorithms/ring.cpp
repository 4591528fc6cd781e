#include "trireme/comm/algorithms/part.h"

namespace trireme::comm {

namespace {

using Kind = Action::Kind;
using Memory = Place::Memory;

//   step s:   rank r sends slice r - s to r + 1, which adds it to its own: after n - 1 steps rank r
//             holds the sum of slice r + 1. Then the sums go round the same way.
void ring_reduce(Program& program, const Part& me, const std::vector<Range>& slices, int first,
                 std::vector<int>& latest) {
  int64_t widest = 0;
  for (const Range& range : slices) widest = std::max(widest, range.size());
  const int64_t scratch = program.scratch_bytes;
  program.scratch_bytes += 2 * widest;
  int previous_fold = -1, fold_before = -1;
  for (int step = 0; step + 1 < me.size; ++step) {
    const auto sent = static_cast<std::size_t>((first - step + 2 * me.size) % me.size);
    const auto got = static_cast<std::size_t>((first - step - 1 + 2 * me.size) % me.size);
    Action send{.kind = Kind::Send, .peer = me.next(), .label = step, .place = in(slices[sent])};
    if (previous_fold >= 0) send.after = {previous_fold};
    program.add(std::move(send));
    const Place place{Memory::Scratch, scratch + (step % 2) * widest, slices[got].size()};
    Action recv{.kind = Kind::Recv, .peer = me.previous(), .label = step, .place = place};
    if (fold_before >= 0) recv.after = {fold_before};
    const int arrived = program.add(std::move(recv));
    fold_before = previous_fold;
    previous_fold = program.add(
        {.kind = Kind::Fold, .place = in(slices[got]), .sources = {place}, .after = {arrived}});
    latest[got] = previous_fold;
  }
  if (me.mean()) {
    const auto own = static_cast<std::size_t>((first + 1) % me.size);
    latest[own] =
        program.add({.kind = Kind::Divide, .place = in(slices[own]), .after = {latest[own]}});
  }
}

/// Whole slices go round: at step s rank r passes on slice first - s. `latest` says what must have
/// finished before a slice may be sent.
void ring_gather(Program& program, const Part& me, const std::vector<Range>& slices, int first,
                 std::vector<int> latest, int label) {
  for (int step = 0; step + 1 < me.size; ++step) {
    const auto sent = static_cast<std::size_t>((first - step + 2 * me.size) % me.size);
    const auto got = static_cast<std::size_t>((first - step - 1 + 2 * me.size) % me.size);
    Action send{
        .kind = Kind::Send, .peer = me.next(), .label = label + step, .place = out(slices[sent])};
    if (latest[sent] >= 0) send.after = {latest[sent]};
    program.add(std::move(send));
    Action recv{.kind = Kind::Recv,
                .peer = me.previous(),
                .label = label + step,
                .place = out(slices[got])};
    if (latest[got] >= 0) recv.after = {latest[got]};
    latest[got] = program.add(std::move(recv));
  }
}

std::vector<Range> slices_of(const Part& me) {
  std::vector<Range> slices;
  for (int rank = 0; rank < me.size; ++rank) slices.push_back(me.slice_bytes(rank));
  return slices;
}

std::vector<int> nothing(const Part& me) {
  return std::vector<int>(static_cast<std::size_t>(me.size), -1);
}

}  // namespace

Program ring_all_reduce(const Part& me) {
  Program program;
  auto latest = nothing(me);
  ring_reduce(program, me, slices_of(me), me.rank, latest);
  ring_gather(program, me, slices_of(me), me.next(), latest, me.size);
  return program;
}

Program ring_all_gather(const Part& me) {
  Program program;
  std::vector<Range> parts;
  for (int rank = 0; rank < me.size; ++rank) parts.push_back(me.out_part(rank));
  auto latest = nothing(me);
  const Range own = me.out_part(me.rank);
  latest[static_cast<std::size_t>(me.rank)] =
      program.add({.kind = Kind::Copy, .place = out(own), .sources = {in({0, own.size()})}});
  ring_gather(program, me, parts, me.rank, latest, 0);
  return program;
}

/// The input is not ours to change: the sums go round in a copy of it.
Program ring_reduce_scatter(const Part& me) {
  std::vector<Range> parts;
  for (int rank = 0; rank < me.size; ++rank) parts.push_back(me.in_part(rank));
  Program inner;
  inner.scratch_bytes = me.job.bytes;
  auto latest = nothing(me);
  const int copy = inner.add({.kind = Kind::Copy,
                              .place = {Memory::Scratch, 0, me.job.bytes},
                              .sources = {in({0, me.job.bytes})}});
  ring_reduce(inner, me, parts, me.previous(), latest);
  for (std::size_t i = 1; i < inner.actions.size(); ++i) {
    Action& action = inner.actions[i];
    if (action.place.memory == Memory::In) action.place.memory = Memory::Scratch;
    if (action.kind != Kind::Recv) action.after.push_back(copy);
  }
  const Range own = me.in_part(me.rank);
  inner.add({.kind = Kind::Copy,
             .place = out({0, own.size()}),
             .sources = {{Memory::Scratch, own.begin, own.size()}},
             .after = {latest[static_cast<std::size_t>(me.rank)]}});
  return inner;
}

}  // namespace trireme::comm
