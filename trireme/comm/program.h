#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/job.h"

namespace trireme::comm {

/// Where bytes lie: in the operation's input, its output, or scratch memory of the program.
struct Place {
  enum class Memory : uint8_t { In, Out, Scratch };
  Memory memory = Memory::In;
  int64_t begin = 0;
  int64_t bytes = 0;
};

/// One thing that a rank does as its part of a collective.
struct Action {
  enum class Kind : uint8_t {
    Send,    ///< `place` to `peer`
    Recv,    ///< from `peer` into `place`
    Reduce,  ///< all `sources`, in their order, into `place`
    Fold,    ///< the one source into `place`, pairwise
    Divide,  ///< `place` by the number of ranks
    Copy,    ///< the one source to `place`
  };
  Kind kind = Kind::Send;
  int peer = 0;       ///< in the group
  int64_t total = 0;  ///< bytes of all transfers with this peer in this direction
  int label = 0;      ///< the same at both ends of a transfer, and unique in the collective
  Place place = {};
  std::vector<Place> sources = {};
  std::vector<int> after = {};  ///< actions of this rank that must have finished: indices
};

/// What one rank does in a collective: a value that can be run, counted and printed. Actions run as
/// soon as what they come after is done; nothing else orders them.
struct Program {
  std::vector<Action> actions;
  int64_t scratch_bytes = 0;

  int add(Action action);  ///< returns its index
};

/// This rank's part of a collective by the named algorithm (never Auto; see `pick`).
///
///            all_reduce  broadcast  reduce  all_gather  reduce_scatter  barrier  others
///   OneShot      x                                                         x
///   Direct       x           x        x         x             x                     x
///   Ring         x                              x             x
///   Tree         x           x        x     x (doubling)                   x
Program make_program(const Job& job, core::Algorithm algorithm, int rank, int size);

bool has_algorithm(core::OpKind kind, core::Algorithm algorithm);

/// What Auto means over streams: the algorithm with the lowest price. Reductions of up to 32 ranks
/// are OneShot or Direct, which add in rank order.
core::Algorithm pick(const Job& job, int size);

/// What an algorithm costs, by its formula: the longest chain of transfers that wait for one
/// another, over all ranks, and the bytes that this rank sends. Ring all-reduce of B bytes: 2(n-1)
/// steps, 2(n-1)/n of B. A test holds these against what was really moved.
struct Cost {
  int steps = 0;
  int64_t sent_bytes = 0;
};
Cost cost(const Job& job, core::Algorithm algorithm, int rank, int size);

/// An estimate of the time, in microseconds, on the rank that has most to do: what a message takes
/// on its way (for each step), what it costs the ranks at its ends (for each message), and the
/// bytes. The constants are those of sockets on one host; what counts is which price is lower.
double price_us(const Job& job, core::Algorithm algorithm, int size);

}  // namespace trireme::comm
