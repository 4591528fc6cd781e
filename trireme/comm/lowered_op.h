#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/op_info.h"

namespace trireme::comm {

/// An operation on plain memory: an `Op` whose tensors have been replaced by pointers and sizes.
/// Everything below Communicator works on these and needs no torch.
///
///   all_reduce       in = out = the data
///   broadcast        in = out = the data
///   reduce           in = the data, out = the data at the root
///   all_gather       in = this rank's part, out = all parts, cut at out_begin
///   reduce_scatter   in = all parts, cut at in_begin, out = this rank's part
///   all_to_all       in cut at in_begin, out cut at out_begin
///   gather, scatter  the root holds all parts, cut at out_begin or in_begin
///   send, recv       in or out; the peer is info.root
struct LoweredOp {
  core::OpInfo info = {};
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;  ///< of the whole: the data, or all parts together

  /// Where each rank's part begins in bytes, and the end: size + 1 numbers. Empty: not cut.
  std::vector<int64_t> in_begin = {}, out_begin = {};
};

/// The half-open interval [begin, end).
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// The slice of `rank` when `count` elements are cut for `size` ranks: as even as possible, with
/// borders at multiples of 16 elements, so that vector code runs on whole registers.
Interval slice(int64_t count, int size, int rank);

}  // namespace trireme::comm
