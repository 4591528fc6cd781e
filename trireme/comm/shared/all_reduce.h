#pragma once

#include "trireme/comm/shared/collective.h"

namespace trireme::comm {

/// all_reduce over shared memory, by one of three methods, chosen by where all ranks' data lies:
///
///   one shot    every rank's data is in its slot: each reduces all of it for itself
///   in place    every rank's tensor is mapped by all: rank r reduces slice r of all of them and
///               writes the result into all of them
///   staged      through the staging chunks, three things overlapping:
///
///     chunk      0   1   2   3 ...
///     in         x   x   x           copy each other rank's part into my staging
///     reduce         x   x   x       my part: all ranks' staging and my own memory, in rank order
///     out                x   x   x   copy the other ranks' results to my memory
class SharedAllReduce final : public SharedCollective {
 public:
  using SharedCollective::SharedCollective;

 private:
  Segments::Location show() override;
  Step run() override;

  Step one_shot();
  Step in_place();
  Step staged();
  bool stage_in();
  bool stage_reduce();
  bool stage_out();
  Interval part(uint64_t chunk, int of) const;  ///< bytes of the tensor

  enum class Method : uint8_t { Unknown, OneShot, InPlace, Staged } method_ = Method::Unknown;
  int64_t at_ = 0;  ///< in place: bytes of the slice that are done
  bool reduced_ = false;
  // Staged: the number of the first chunk, the number of chunks, and the progress of each activity.
  uint64_t first_ = 0, count_ = 0, in_ = 0, reduce_ = 0, out_ = 0;
  int64_t chunk_bytes_ = 0;
};

}  // namespace trireme::comm
