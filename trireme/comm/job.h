#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/op_info.h"

namespace trireme::comm {

/// An operation on plain memory: what is left of an `Op` when its tensors have been looked at.
/// Everything below the front works on these, so that it needs no torch.
///
///   all_reduce       in = out = the data
///   broadcast        in = out = the data
///   reduce           in = the data, out = the data at the root
///   all_gather       in = this rank's part, out = all parts, cut at out_begin
///   reduce_scatter   in = all parts, cut at in_begin, out = this rank's part
///   all_to_all       in cut at in_begin, out cut at out_begin
///   gather, scatter  the root holds all parts, cut at out_begin or in_begin
///   send, recv       in or out; the peer is info.root
struct Job {
  core::OpInfo info = {};
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;  ///< of the whole: the data, or all parts together

  /// Where each rank's part begins in bytes, and the end: size + 1 numbers. Empty: not cut.
  std::vector<int64_t> in_begin = {}, out_begin = {};
};

/// A part of something that was cut.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// Part `rank` of `count` elements cut for `size` ranks: as even as possible, borders at multiples
/// of 16 elements so that vector code runs on whole registers.
Range slice(int64_t count, int size, int rank);

}  // namespace trireme::comm
