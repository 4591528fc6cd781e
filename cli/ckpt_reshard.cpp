#include "cli/ckpt_reshard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "trireme/core/units.h"
#include "trireme/format/index.h"
#include "trireme/format/reshard.h"

namespace trireme::cli {

namespace {

using Clock = std::chrono::steady_clock;

/// One line on the terminal that is drawn over; nothing where stderr is none.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }

  void show(int64_t done_bytes, int64_t all_bytes) {
    if (!terminal_) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    fmt::print(stderr, "\r\033[K{:3.0f} %  {} of {}  {}/s",
               100.0 * static_cast<double>(done_bytes) / static_cast<double>(all_bytes),
               core::format_bytes(done_bytes), core::format_bytes(all_bytes),
               core::format_bytes(static_cast<int64_t>(static_cast<double>(done_bytes) /
                                                       std::max(seconds, 1e-3))));
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  const Clock::time_point began_ = Clock::now();
  bool drawn_ = false;
};

}  // namespace

void reshard_checkpoint(const std::string& from, const std::string& to, int ranks) {
  {
    ProgressLine line;
    format::reshard(from, to,
                    {.ranks = ranks, .progress = [&](int64_t done_bytes, int64_t all_bytes) {
                       line.show(done_bytes, all_bytes);
                     }});
  }
  const format::Index index = format::read_index(to);
  int64_t bytes = 0;
  for (const auto& [name, file] : index.files) bytes += file.bytes;
  fmt::print("{}: step {}, {} tensors, {} in {} file{}\n", to, index.step, index.tensors.size(),
             core::format_bytes(bytes), index.files.size(), index.files.size() == 1 ? "" : "s");
}

}  // namespace trireme::cli
