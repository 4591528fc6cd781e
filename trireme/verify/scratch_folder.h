#pragma once

#include <string>

#include "trireme/net/socket.h"

namespace trireme::verify {

/// A folder of its own in TMPDIR, which goes with this, and also when the process is killed: a
/// process that waits for its end removes it then.
///
///     this ──pipe──> waits for the end of the pipe, then becomes rm -rf (a byte: it was not made)
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  /// Empty if none could be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  net::Fd pipe_;
};

}  // namespace trireme::verify
