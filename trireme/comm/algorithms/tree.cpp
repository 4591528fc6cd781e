#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using core::OpKind;
using Kind = Instruction::Kind;
using Memory = Operand::Memory;

/// A rank's parent and children in the binomial tree with root `root`. The distance to the parent
/// is a power of 2:
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

/// Sums go up the tree. Returns the last instruction that uses the sum, or -1.
int tree_reduce(CollectiveProgram& program, const RankView& me, const Tree& tree) {
  const Interval all{0, me.op.bytes};
  // The input of `reduce` must not change, except at the root.
  const bool in_place = me.op.info.kind != OpKind::Reduce || tree.parent < 0;
  // A barrier has nothing to sum, but waits in the same order.
  const Kind combine = me.op.info.kind == OpKind::Barrier ? Kind::Copy : Kind::Fold;
  Operand sum = in(all);
  int last = -1;
  for (int child : tree.children) {
    const Operand scratch{Memory::Scratch, program.scratch_bytes, me.op.bytes};
    program.scratch_bytes += me.op.bytes;
    const int arrived = program.add({.kind = Kind::Recv, .peer = child, .target = scratch});
    if (!in_place && last < 0) {
      sum = {Memory::Scratch, program.scratch_bytes, me.op.bytes};
      program.scratch_bytes += me.op.bytes;
      last = program.add({.kind = Kind::Copy, .target = sum, .sources = {in(all)}});
    }
    Instruction fold{.kind = combine, .target = sum, .sources = {scratch}, .after = {arrived}};
    if (last >= 0) fold.after.push_back(last);
    last = program.add(std::move(fold));
  }
  if (tree.parent >= 0) {
    Instruction send{.kind = Kind::Send, .peer = tree.parent, .target = sum};
    if (last >= 0) send.after = {last};
    return program.add(std::move(send));
  }
  if (me.mean() && last >= 0)
    last = program.add({.kind = Kind::Divide, .target = sum, .after = {last}});
  return last;
}

/// The result goes down the tree, to the farthest child first: its subtree is the deepest.
void tree_broadcast(CollectiveProgram& program, const RankView& me, const Tree& tree, int last) {
  const Interval all{0, me.op.bytes};
  if (tree.parent >= 0) {
    Instruction recv{.kind = Kind::Recv, .peer = tree.parent, .label = 1, .target = out(all)};
    if (last >= 0) recv.after = {last};
    last = program.add(std::move(recv));
  }
  for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
    Instruction send{.kind = Kind::Send, .peer = *child, .label = 1, .target = out(all)};
    if (last >= 0) send.after = {last};
    program.add(std::move(send));
  }
}

}  // namespace

CollectiveProgram tree(const RankView& me) {
  CollectiveProgram program;
  const OpKind kind = me.op.info.kind;
  const bool has_root = kind == OpKind::Broadcast || kind == OpKind::Reduce;
  const Tree place(me.rank, me.size, has_root ? me.op.info.root : 0);
  int last = -1;
  if (kind != OpKind::Broadcast) last = tree_reduce(program, me, place);
  if (kind != OpKind::Reduce) tree_broadcast(program, me, place, last);
  return program;
}

}  // namespace trireme::comm
