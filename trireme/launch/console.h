#pragma once

#include <memory>

#include "trireme/launch/signals.h"
#include "trireme/launch/sink.h"

namespace trireme::launch {

/// Our stdout and stderr. Where both are the same terminal or file they are one sink, so that lines
/// stay whole across the two.
class Console {
 public:
  Console();

  Sink& out() { return out_; }
  Sink& err() { return err_ ? *err_ : out_; }
  void flush();
  /// Waits until everything is written, nobody reads any more, or a signal says to go.
  void drain(Signals& signals);

 private:
  Sink out_;
  std::unique_ptr<Sink> err_;
};

/// Opens /dev/null for each of 0, 1 and 2 that is closed, lest a pipe of ours be taken for one.
void open_standard_files();

}  // namespace trireme::launch
