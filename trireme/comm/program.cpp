#include "trireme/comm/program.h"

#include <algorithm>

#include "trireme/comm/kernels.h"
#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

using core::Algorithm;
using core::OpKind;
using Kind = Action::Kind;
using Memory = Place::Memory;

constexpr int64_t kOneShotBytes = 32 << 10;
constexpr int64_t kChunkBytes = 512 << 10;
constexpr int kChunksInFlight = 4;

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

Place in(Range range) {
  return {Memory::In, range.begin, range.size()};
}
Place out(Range range) {
  return {Memory::Out, range.begin, range.size()};
}

/// Everyone sends everything to everyone, and reduces for itself: one step.
Program one_shot(const Part& me) {
  Program program;
  const Range all{0, me.job.bytes};
  Action reduce{.kind = Kind::Reduce, .place = out(all)};
  for (int rank = 0; rank < me.size; ++rank) {
    if (rank == me.rank) {
      reduce.sources.push_back(in(all));
      continue;
    }
    const Place scratch{Memory::Scratch, program.scratch_bytes, me.job.bytes};
    program.scratch_bytes += me.job.bytes;
    // Input and output are the same memory: it must be sent before it is overwritten.
    reduce.after.push_back(program.add({.kind = Kind::Send, .peer = rank, .place = in(all)}));
    reduce.after.push_back(program.add({.kind = Kind::Recv, .peer = rank, .place = scratch}));
    reduce.sources.push_back(scratch);
  }
  if (me.job.info.kind != OpKind::Barrier) program.add(std::move(reduce));
  return program;
}

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

/// How many messages carry a range. None for nothing, unless both ends cannot know that it is
/// nothing.
enum class Empty : uint8_t { Skip, Send };
int chunks_of(Range range, Empty empty) {
  const auto chunks = static_cast<int>((range.size() + kChunkBytes - 1) / kChunkBytes);
  return empty == Empty::Send ? std::max(chunks, 1) : chunks;
}

/// Sends chunk after chunk of `range` to `peer`; chunk c not before after[c] has finished.
void send_chunks(Program& program, int peer, Place::Memory memory, Range range, int phase,
                 const std::vector<int>& after = {}, Empty empty = Empty::Skip) {
  for (int chunk = 0; chunk < chunks_of(range, empty); ++chunk) {
    const int64_t begin = range.begin + chunk * kChunkBytes;
    Action send{.kind = Kind::Send,
                .peer = peer,
                .total = range.size(),
                .label = 2 * chunk + phase,
                .place = {memory, begin, std::min(kChunkBytes, range.end - begin)}};
    if (!after.empty()) send.after = {after[static_cast<std::size_t>(chunk)]};
    program.add(std::move(send));
  }
}

void recv_chunks(Program& program, int peer, Range range, int phase, Empty empty = Empty::Skip) {
  for (int chunk = 0; chunk < chunks_of(range, empty); ++chunk) {
    const int64_t begin = range.begin + chunk * kChunkBytes;
    program.add({.kind = Kind::Recv,
                 .peer = peer,
                 .total = range.size(),
                 .label = 2 * chunk + phase,
                 .place = {Memory::Out, begin, std::min(kChunkBytes, range.end - begin)}});
  }
}

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

Program ring_all_reduce(const Part& me) {
  Program program;
  auto latest = nothing(me);
  ring_reduce(program, me, slices_of(me), me.rank, latest);
  ring_gather(program, me, slices_of(me), me.next(), latest, me.size);
  return program;
}

/// The parents and children of the binomial tree whose root is `root`: rank distance is a power
/// of 2.
///
///   distance 1 to parent:  1 3 5 7       distance 2:  2 6       distance 4:  4       root: 0
struct Tree {
  int parent = -1;
  std::vector<int> children;  ///< nearest first: the order in which their sums are ready

  Tree(int rank, int size, int root) {
    const int place = (rank - root + size) % size;
    for (int distance = 1; distance < size; distance *= 2) {
      if (place & distance) {
        parent = (place - distance + root) % size;
        return;
      }
      if (place + distance < size) children.push_back((place + distance + root) % size);
    }
  }
};

/// Sums go up the tree. Returns the last action on `memory`, or -1.
int tree_reduce(Program& program, const Part& me, const Tree& tree) {
  const Range all{0, me.job.bytes};
  // The input of `reduce` is not ours to change, except at the root.
  const bool in_place = me.job.info.kind == OpKind::AllReduce || tree.parent < 0;
  Place sum = in(all);
  int last = -1;
  for (int child : tree.children) {
    const Place scratch{Memory::Scratch, program.scratch_bytes, me.job.bytes};
    program.scratch_bytes += me.job.bytes;
    const int arrived = program.add({.kind = Kind::Recv, .peer = child, .place = scratch});
    if (!in_place && last < 0) {
      sum = {Memory::Scratch, program.scratch_bytes, me.job.bytes};
      program.scratch_bytes += me.job.bytes;
      last = program.add({.kind = Kind::Copy, .place = sum, .sources = {in(all)}});
    }
    Action fold{.kind = Kind::Fold, .place = sum, .sources = {scratch}, .after = {arrived}};
    if (last >= 0) fold.after.push_back(last);
    last = program.add(std::move(fold));
  }
  if (tree.parent >= 0) {
    Action send{.kind = Kind::Send, .peer = tree.parent, .place = sum};
    if (last >= 0) send.after = {last};
    return program.add(std::move(send));
  }
  if (me.mean()) last = program.add({.kind = Kind::Divide, .place = sum, .after = {last}});
  return last;
}

/// The result goes down the tree, farthest child first: it has the longest way to go on.
void tree_broadcast(Program& program, const Part& me, const Tree& tree, int last) {
  const Range all{0, me.job.bytes};
  if (tree.parent >= 0) {
    Action recv{.kind = Kind::Recv, .peer = tree.parent, .label = 1, .place = out(all)};
    if (last >= 0) recv.after = {last};
    last = program.add(std::move(recv));
  }
  for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
    Action send{.kind = Kind::Send, .peer = *child, .label = 1, .place = out(all)};
    if (last >= 0) send.after = {last};
    program.add(std::move(send));
  }
}

Program tree(const Part& me) {
  Program program;
  const OpKind kind = me.job.info.kind;
  const Tree place(me.rank, me.size, kind == OpKind::AllReduce ? 0 : me.job.info.root);
  int last = -1;
  if (kind != OpKind::Broadcast) last = tree_reduce(program, me, place);
  if (kind != OpKind::Reduce) tree_broadcast(program, me, place, last);
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

/// Moves without arithmetic: what this rank sends to and takes from each rank.
Program exchange(const Part& me) {
  Program program;
  const OpKind kind = me.job.info.kind;
  const int root = me.job.info.root;
  const bool is_root = me.rank == root;
  const auto sends_to = [&](int peer) -> Range {
    switch (kind) {
      case OpKind::Broadcast: return is_root ? Range{0, me.job.bytes} : Range{};
      case OpKind::AllGather: return {0, me.out_part(me.rank).size()};
      case OpKind::Gather: return peer == root ? Range{0, me.out_part(me.rank).size()} : Range{};
      case OpKind::Scatter: return is_root ? me.in_part(peer) : Range{};
      default: return me.in_part(peer);
    }
  };
  const auto takes_from = [&](int peer) -> Range {
    switch (kind) {
      case OpKind::Broadcast: return peer == root ? Range{0, me.job.bytes} : Range{};
      case OpKind::Gather: return is_root ? me.out_part(peer) : Range{};
      case OpKind::Scatter: return peer == root ? Range{0, me.in_part(me.rank).size()} : Range{};
      default: return me.out_part(peer);
    }
  };
  // Only in an all_to_all does each end say for itself how much goes between two ranks: a message
  // that says 0 is what tells one that expected more.
  const Empty empty = kind == OpKind::AllToAll ? Empty::Send : Empty::Skip;
  if (kind != OpKind::Broadcast && takes_from(me.rank).size() > 0)
    program.add({.kind = Kind::Copy,
                 .place = out(takes_from(me.rank)),
                 .sources = {in(sends_to(me.rank))}});
  for (int i = 1; i < me.size; ++i) {
    const int to = (me.rank + i) % me.size, from = (me.rank - i + me.size) % me.size;
    send_chunks(program, to, Memory::In, sends_to(to), 0, {}, empty);
    recv_chunks(program, from, takes_from(from), 0, empty);
  }
  return program;
}

}  // namespace

Range slice(int64_t count, int size, int rank) {
  constexpr int64_t kAlign = 16;
  const int64_t each = (count + size * kAlign - 1) / (size * kAlign) * kAlign;
  return {std::min(count, rank * each), std::min(count, (rank + 1) * each)};
}

int Program::add(Action action) {
  actions.push_back(std::move(action));
  return static_cast<int>(actions.size()) - 1;
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
      return kind == OpKind::AllReduce || kind == OpKind::Broadcast || kind == OpKind::Reduce;
  }
  return false;
}

Algorithm pick(const Job& job, int size) {
  if (job.info.algorithm != Algorithm::Auto) return job.info.algorithm;
  if (job.info.kind == OpKind::Barrier) return Algorithm::OneShot;
  const bool small = job.info.kind == OpKind::AllReduce && job.bytes * (size - 1) <= kOneShotBytes;
  return small ? Algorithm::OneShot : Algorithm::Direct;
}

Program make_program(const Job& job, Algorithm algorithm, int rank, int size) {
  const Part me{job, rank, size};
  const OpKind kind = job.info.kind;
  core::check(has_algorithm(kind, algorithm) && algorithm != Algorithm::Auto,
              "{} has no algorithm '{}'", to_string(kind), to_string(algorithm));
  switch (algorithm) {
    case Algorithm::OneShot: return one_shot(me);
    case Algorithm::Tree: return tree(me);
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
