#pragma once

#include <cstdint>
#include <string>

#include "trireme/net/socket.h"

namespace trireme::train {

/// A file of one JSON object per line, each with a "step". When `add` returns, the line is complete
/// in the file or, if the disk is full, absent; the run goes on.
class LinesFile {
 public:
  /// Keeps the lines up to `step`, and drops later lines and everything that is not such a line.
  LinesFile(std::string path, int64_t step);
  void add(const std::string& line);

 private:
  std::string path_;
  net::Fd file_;
  int64_t bytes_ = 0;
};

}  // namespace trireme::train
