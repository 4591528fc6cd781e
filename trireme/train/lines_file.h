#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "trireme/net/socket.h"

namespace trireme::train {

/// A file of one JSON object per line, each with a "step". A line is in the file, whole, when `add`
/// returns. Where it cannot be written (the disk is full) the run goes on: lines wait in memory,
/// up to `most_waiting` bytes, until there is room again. `tell` gets one sentence when that begins
/// and one when it ends, which names the steps that are missing, if any.
class LinesFile {
 public:
  using Tell = std::function<void(const std::string& sentence)>;
  static constexpr int64_t kMostWaiting = int64_t{16} << 20;

  /// Keeps the lines up to `step` as they are, and drops later lines and malformed ones.
  LinesFile(std::string path, int64_t step, Tell tell, int64_t most_waiting = kMostWaiting);
  /// Tries once more to write what waits.
  ~LinesFile();
  LinesFile(const LinesFile&) = delete;
  LinesFile& operator=(const LinesFile&) = delete;

  void add(int64_t step, const std::string& line);

 private:
  struct Waiting {
    int64_t step;
    std::string line;
  };

  /// Writes the waiting lines, oldest first. Returns true if all of them are now in the file.
  bool flush();
  std::string missing() const;

  std::string path_;
  Tell tell_;
  int64_t most_waiting_;
  net::Fd file_;
  int64_t bytes_ = 0;  ///< of whole lines in the file
  std::deque<Waiting> waiting_;
  int64_t waiting_bytes_ = 0;
  bool told_ = false, removed_ = false;
  int64_t first_missing_ = 0, last_missing_ = 0;  ///< steps that found no room in memory either
};

}  // namespace trireme::train
