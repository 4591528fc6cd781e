#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/nn/flow.h"

namespace trireme::parallel {

/// Flows, on their way between the ranks of a pipeline.
///
///   header    shapes, dtypes, who needs a gradient, where it stands     1 KiB, received early
///   more      of the header, where it is longer (many sample ids)
///   tensors   one message each, received as soon as the header is seen
///
/// So micro-batches may have any shape and number of tensors. A tensor that is not defined (the
/// gradient of what nobody used) stays so. Sends go on by themselves.
class Transfers {
 public:
  Transfers(comm::Communicator pipe, c10::Device device);
  ~Transfers();

  void send(const nn::Flow& flow, int to, int tag);

  /// A Flow will be taken from there: its header may come now.
  void expect(int from, int tag);
  /// Waits for it. Tensors that need a gradient are leaves that require one.
  nn::Flow take(int from, int tag);

  /// Goes on with what has come meanwhile: tensors of headers that are here, sends that are done.
  void advance();
  /// Waits until everything that was sent is with the others.
  void finish_sends();

 private:
  struct Arrival;
  using Key = std::pair<int, int>;  // from, tag
  void read_header(Arrival& arrival, int from, int tag);

  comm::Communicator pipe_;
  c10::Device device_;
  std::map<Key, std::deque<Arrival>> arrivals_;
  std::deque<comm::Work> sending_;
};

}  // namespace trireme::parallel
