#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/op.h"

namespace trireme::comm {

/// Bytes that an instruction reads or writes: in the operation's input, its output, or scratch
/// memory.
struct Operand {
  enum class Memory : uint8_t { In, Out, Scratch };
  Memory memory = Memory::In;
  int64_t begin = 0;
  int64_t bytes = 0;
};

/// One thing that a rank does in a collective.
struct Instruction {
  enum class Kind : uint8_t {
    Send,    ///< `target` to `peer`
    Recv,    ///< from `peer` into `target`
    Reduce,  ///< all `sources`, in their order, into `target`
    Fold,    ///< the one source into `target`, pairwise
    Divide,  ///< `target` by the number of ranks
    Copy,    ///< the one source to `target`
  };
  Kind kind = Kind::Send;
  int peer = 0;       ///< in the group
  int64_t total = 0;  ///< bytes of all transfers with this peer in this direction
  int label = 0;      ///< the same at both ends of a transfer, and unique in the collective
  Operand target = {};
  std::vector<Operand> sources = {};
  std::vector<int> after = {};  ///< indices of this rank's instructions that must finish first
};

/// What one rank does in a collective, as a value that can be run, counted and printed. An
/// instruction runs as soon as those in `after` have finished; nothing else orders them.
struct CollectiveProgram {
  std::vector<Instruction> instructions;
  int64_t scratch_bytes = 0;

  int add(Instruction instruction);  ///< returns its index
};

/// This rank's program for a collective, by the given algorithm (not Auto; see `pick`).
///
///            all_reduce  broadcast  reduce  all_gather  reduce_scatter  barrier  others
///   OneShot      x                                                         x
///   Direct       x           x        x         x             x                     x
///   Ring         x                              x             x
///   Tree         x           x        x     x (doubling)                   x
CollectiveProgram make_program(const LoweredOp& op, core::Algorithm algorithm, int rank, int size);

bool has_algorithm(core::OpKind kind, core::Algorithm algorithm);

/// The algorithm that Auto stands for over streams: the one with the lowest price. For reductions
/// of up to 32 ranks it is OneShot or Direct, which add in rank order.
core::Algorithm pick(const LoweredOp& op, int size);

/// The cost of an algorithm by formula: the longest chain of transfers that wait for one another,
/// over all ranks, and the bytes that this rank sends. Ring all-reduce of B bytes: 2(n-1) steps,
/// 2(n-1)/n of B. A test compares these with what was really moved.
struct Cost {
  int steps = 0;
  int64_t sent_bytes = 0;
};
Cost cost(const LoweredOp& op, core::Algorithm algorithm, int rank, int size);

/// An estimate of the time, in microseconds, on the busiest rank: the latency of each step, the
/// work for each message, and the bytes. The constants are those of sockets on one host; only the
/// comparison of two prices matters.
double price_us(const LoweredOp& op, core::Algorithm algorithm, int size);

}  // namespace trireme::comm
