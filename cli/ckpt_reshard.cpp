#include "cli/ckpt_reshard.h"

#include <fmt/format.h>
#include <signal.h>

#include <iterator>

#include "cli/status_line.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/reshard.h"

namespace trireme::cli {

namespace {

using Progress = format::ReshardOptions::Progress;

std::string text_of(const Progress& now) {
  return fmt::format("{} of {}, file {} of {}", core::format_bytes(now.done_bytes),
                     core::format_bytes(now.all_bytes), now.done_files, now.all_files);
}

volatile sig_atomic_t asked_to_stop = 0;

struct Stopped {
  int signal;
};

/// While it exists, Ctrl-C, SIGTERM and SIGHUP only set asked_to_stop.
class SignalRecorder {
 public:
  SignalRecorder() {
    struct sigaction action {};
    action.sa_handler = [](int signal) { asked_to_stop = signal; };
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < std::size(kTaken); ++i) {
      ::sigaction(kTaken[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kTaken[i], &action, nullptr);  // nohup
    }
    ::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: an error of write, after which OUT.tmp goes
  }
  ~SignalRecorder() {
    for (size_t i = 0; i < std::size(kTaken); ++i) ::sigaction(kTaken[i], &before_[i], nullptr);
  }
  SignalRecorder(const SignalRecorder&) = delete;
  SignalRecorder& operator=(const SignalRecorder&) = delete;

 private:
  static constexpr int kTaken[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[std::size(kTaken)] = {};
};

}  // namespace

int reshard_checkpoint(const std::string& from, const std::string& to, int ranks) {
  if (to.empty()) throw ConfigError("reshard: OUT is empty; name the folder to write");
  if (const auto wrong = format::wrong_name(to, format::read_index(from).step))
    throw ConfigError(*wrong + "; choose another name");
  try {
    const SignalRecorder signals;
    StatusLine line;
    format::reshard(from, to, {.ranks = ranks, .progress = [&](const Progress& now) {
                                 if (asked_to_stop != 0) throw Stopped{asked_to_stop};
                                 if (line.due()) line.show(text_of(now));
                               }});
  } catch (const Stopped& stopped) {
    fmt::print(stderr, "trireme ckpt reshard: stopped; {} was removed\n", to);
    return 128 + stopped.signal;
  }
  const format::Index index = format::read_index(to);
  fmt::print("{}: step {}, {} tensors, {} in {} file{}\n", to, index.step, index.tensors.size(),
             core::format_bytes(index.total_bytes()), index.files.size(),
             index.files.size() == 1 ? "" : "s");
  return 0;
}

}  // namespace trireme::cli
