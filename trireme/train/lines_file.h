#pragma once

#include <cstdint>
#include <string>

#include "trireme/net/socket.h"

namespace trireme::train {

/// A file of one JSON object per line, each with a "step". A line is in the file, whole, when `add`
/// returns; where the disk is full it is not there at all, and the run goes on.
class LinesFile {
 public:
  /// Keeps the lines up to `step` as they are, and drops those after it and what is no such line.
  LinesFile(std::string path, int64_t step);
  void add(const std::string& line);

 private:
  std::string path_;
  net::Fd file_;
  int64_t bytes_ = 0;
};

}  // namespace trireme::train
