#include "cli/interruptible.h"

#include <fmt/format.h>
#include <signal.h>

#include <iterator>

#include "cli/status_line.h"

namespace trireme::cli {

namespace {

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

int write_interruptibly(const std::string& speaker, const std::string& out,
                        const std::function<void(const Tell&)>& write) {
  try {
    const SignalRecorder signals;
    StatusLine line;
    write([&](const std::function<std::string()>& text) {
      if (asked_to_stop != 0) throw Stopped{asked_to_stop};
      if (line.due()) line.show(text());
    });
  } catch (const Stopped& stopped) {
    fmt::print(stderr, "{}: stopped; {} was removed\n", speaker, out);
    return 128 + stopped.signal;
  }
  return 0;
}

}  // namespace trireme::cli
