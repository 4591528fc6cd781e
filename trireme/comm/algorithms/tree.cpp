#include "trireme/comm/algorithms/part.h"

namespace trireme::comm {

namespace {

using core::OpKind;
using Kind = Action::Kind;
using Memory = Place::Memory;

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
  const bool in_place = me.job.info.kind != OpKind::Reduce || tree.parent < 0;
  // A barrier sums nothing, but waits in the same order.
  const Kind combine = me.job.info.kind == OpKind::Barrier ? Kind::Copy : Kind::Fold;
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
    Action fold{.kind = combine, .place = sum, .sources = {scratch}, .after = {arrived}};
    if (last >= 0) fold.after.push_back(last);
    last = program.add(std::move(fold));
  }
  if (tree.parent >= 0) {
    Action send{.kind = Kind::Send, .peer = tree.parent, .place = sum};
    if (last >= 0) send.after = {last};
    return program.add(std::move(send));
  }
  if (me.mean() && last >= 0)
    last = program.add({.kind = Kind::Divide, .place = sum, .after = {last}});
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

}  // namespace

Program tree(const Part& me) {
  Program program;
  const OpKind kind = me.job.info.kind;
  const bool has_root = kind == OpKind::Broadcast || kind == OpKind::Reduce;
  const Tree place(me.rank, me.size, has_root ? me.job.info.root : 0);
  int last = -1;
  if (kind != OpKind::Broadcast) last = tree_reduce(program, me, place);
  if (kind != OpKind::Reduce) tree_broadcast(program, me, place, last);
  return program;
}

}  // namespace trireme::comm
