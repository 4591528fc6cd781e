#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/nn/flow.h"
#include "trireme/parallel/narrow.h"

namespace trireme::parallel {

/// Sends and receives Flows between the ranks of a pipeline. A Flow is several messages:
///
///   header    shapes, dtypes, which need a gradient, their Where     1 KiB, received early
///   more      the rest of a longer header (many sample ids)
///   tensors   one message each, received as soon as the header is read; in fewer bytes, if the
///             ranks agreed on a `Narrow`
///
/// Micro-batches may therefore have any shape and number of tensors. An undefined tensor (the
/// gradient of a tensor that nobody used) arrives undefined. Sends proceed in the background.
///
/// Flows are taken in any order, but headers of one rank are read in the order in which it sent
/// them, and so are the receives of tensors posted: NCCL has no tags.
class Transfers {
 public:
  Transfers(comm::Communicator pipe, c10::Device device, Narrow narrow = {});
  ~Transfers();

  void send(const nn::Flow& flow, int to, int tag);

  /// Posts the receive of a header, for a Flow that will be taken later.
  void expect(int from, int tag);
  /// Waits for it. Tensors that need a gradient are leaves that require one.
  nn::Flow take(int from, int tag);

  /// Makes progress: posts the receives for headers that have arrived, and drops completed sends.
  void advance();
  /// Waits until all sends are complete.
  void finish_sends();

 private:
  struct Arrival;
  struct Sender;
  void post_header(int from, Sender& sender);
  void read_header(int from, Sender& sender);

  comm::Communicator pipe_;
  c10::Device device_;
  Narrow narrow_;
  std::map<int, Sender> senders_;
  std::deque<comm::Work> sending_;
};

}  // namespace trireme::parallel
