#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/lowered_op.h"
#include "trireme/comm/nccl/library.h"

namespace trireme::comm::nccl {

/// One call of NCCL, as a value: what it reads and writes is given as a place in the op's input or
/// output.
struct Call {
  enum class Kind : uint8_t { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, Send, Recv };
  /// A place in the memory of the op.
  struct Place {
    enum class Side : uint8_t { In, Out } side = Side::In;
    int64_t at_bytes = 0;
    bool operator==(const Place&) const = default;
  };

  Kind kind = Kind::AllReduce;
  Place from = {}, to = {};  ///< a send has no `to`, a receive no `from`
  int64_t count = 0;         ///< elements of `dtype`
  core::DType dtype = core::DType::UInt8;
  core::ReduceOp reduce = core::ReduceOp::Sum;
  int peer = -1;  ///< the root, or the other rank, in the communicator that the call is made on

  bool operator==(const Call&) const = default;
};

/// What an op becomes. All calls of a list are made as one group. What only moves is moved as
/// bytes, so every dtype can be moved. Ranks that were given the same op get lists that fit each
/// other; an op without data has an empty list on all of them.
///
///   all_reduce, broadcast, reduce     one call
///   all_gather                        one call; if uneven, a broadcast of each rank's part
///   reduce_scatter                    one call; if uneven, a reduce of each rank's part to it
///   all_to_all, gather, scatter       sends and receives, of one's own part, too
///   send, recv                        one call; the communicator has two ranks, the sender is 0
std::vector<Call> calls_of(const LoweredOp& op, int rank);

/// "reduce in+24 -> out+0, 6 float32 sum, rank 1".
std::string to_string(const Call& call);

/// Makes the calls on a communicator, as one group if there are several. Returns NCCL's result.
int make_calls(const std::vector<Call>& calls, std::byte* in, std::byte* out, Library::Comm comm,
               Library::Stream stream);

}  // namespace trireme::comm::nccl
