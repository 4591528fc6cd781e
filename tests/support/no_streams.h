#pragma once

#include "trireme/comm/streams.h"

namespace trireme::comm {

/// Streams to nobody.
class NoStreams final : public Streams {
 public:
  int64_t write_some(int, const iovec*, int) override { return 0; }
  int64_t read_some(int, void*, int64_t) override { return 0; }
  bool ended(int) override { return true; }
  bool readable(int) override { return false; }
};

}  // namespace trireme::comm
