#include "cli/ckpt_reshard.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "trireme/core/units.h"
#include "trireme/format/index.h"
#include "trireme/format/reshard.h"

namespace trireme::cli {

namespace {

using Clock = std::chrono::steady_clock;
using Progress = format::ReshardOptions::Progress;

/// On a terminal one line that is drawn over; elsewhere a line every ten seconds.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }

  void show(const Progress& now) {
    const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
    if (Clock::now() - shown_ < pause) return;
    shown_ = Clock::now();
    const std::string text =
        fmt::format("{} of {}, file {} of {}", core::format_bytes(now.done_bytes),
                    core::format_bytes(now.all_bytes), now.done_files, now.all_files);
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r\033[K" : "", text, terminal_ ? "" : "\n");
    std::fflush(stderr);
    drawn_ = terminal_;
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  Clock::time_point shown_ = Clock::now();
  bool drawn_ = false;
};

volatile sig_atomic_t asked_to_stop = 0;

struct Stopped {
  int signal;
};

/// While it lives, Ctrl-C and SIGTERM are taken note of, and nothing else.
class TakesSignals {
 public:
  TakesSignals() {
    struct sigaction action {};
    action.sa_handler = [](int signal) { asked_to_stop = signal; };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, &before_[0]);
    ::sigaction(SIGTERM, &action, &before_[1]);
  }
  ~TakesSignals() {
    ::sigaction(SIGINT, &before_[0], nullptr);
    ::sigaction(SIGTERM, &before_[1], nullptr);
  }
  TakesSignals(const TakesSignals&) = delete;
  TakesSignals& operator=(const TakesSignals&) = delete;

 private:
  struct sigaction before_[2] = {};
};

}  // namespace

int reshard_checkpoint(const std::string& from, const std::string& to, int ranks) {
  try {
    const TakesSignals signals;
    ProgressLine line;
    format::reshard(from, to, {.ranks = ranks, .progress = [&](const Progress& now) {
                                 if (asked_to_stop != 0) throw Stopped{asked_to_stop};
                                 line.show(now);
                               }});
  } catch (const Stopped& stopped) {
    fmt::print(stderr, "trireme ckpt reshard: stopped; nothing of {} is left\n", to);
    return 128 + stopped.signal;
  }
  const format::Index index = format::read_index(to);
  int64_t bytes = 0;
  for (const auto& [name, file] : index.files) bytes += file.bytes;
  fmt::print("{}: step {}, {} tensors, {} in {} file{}\n", to, index.step, index.tensors.size(),
             core::format_bytes(bytes), index.files.size(), index.files.size() == 1 ? "" : "s");
  return 0;
}

}  // namespace trireme::cli
