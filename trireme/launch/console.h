#pragma once

#include <memory>

#include "trireme/launch/signals.h"
#include "trireme/launch/sink.h"

namespace trireme::launch {

/// The launcher's stdout and stderr. If both are the same terminal or file, they share one sink, so
/// that their lines do not mix.
class Console {
 public:
  Console();

  Sink& out() { return out_; }
  Sink& err() { return err_ ? *err_ : out_; }
  void flush();
  /// Waits until everything is written, nobody reads any more, or a signal tells us to end.
  void drain(Signals& signals);

 private:
  Sink out_;
  std::unique_ptr<Sink> err_;
};

/// Opens /dev/null for each of 0, 1 and 2 that is closed, so that no pipe of ours gets their
/// number.
void open_standard_files();

}  // namespace trireme::launch
