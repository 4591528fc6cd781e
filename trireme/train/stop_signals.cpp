#include "trireme/train/stop_signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

namespace trireme::train {

namespace {

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  // nohup: a blocked signal would come though it is ignored.
  struct sigaction hang_up {};
  if (::sigaction(SIGHUP, nullptr, &hang_up) != 0 || hang_up.sa_handler != SIG_IGN)
    sigaddset(&set, SIGHUP);
  return set;
}

constexpr double kInterrupted = 1, kClosed = 1e6, kTerminated = 1e12, kHungUp = 1e18;

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // If the reader of stdout closes it (`| head`), write returns an error; the run must not die of
  // it.
  ::signal(SIGPIPE, SIG_IGN);
  // A file that grows past `ulimit -f` is an error of write, too, and costs one checkpoint.
  ::signal(SIGXFSZ, SIG_IGN);
  listener_ = std::jthread([this, set](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};
      const int signal = sigtimedwait(&set, nullptr, &kLook);
      if (signal <= 0) continue;
      int none = 0;
      // Both the kernel and the shell say that a terminal was closed: the second is no new wish.
      if (signal == SIGHUP && asked() != 0) continue;
      if (!deferred_ || !first_.compare_exchange_strong(none, signal)) ::_exit(128 + signal);
    }
  });
}

void StopSignals::stop_by(int signal) const {
  int none = 0;
  first_.compare_exchange_strong(none, signal);
}

double StopSignals::wish() const {
  const int signal = asked();
  if (signal == 0) return 0;
  if (signal == SIGHUP) return kHungUp;
  return signal == SIGTERM ? kTerminated : signal == SIGPIPE ? kClosed : kInterrupted;
}

StopSignals::~StopSignals() {
  listener_.request_stop();
  listener_.join();
  const sigset_t set = watched();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int exit_code_of(double sum_of_wishes) {
  if (sum_of_wishes >= kHungUp) return 128 + SIGHUP;
  return sum_of_wishes >= kTerminated ? 128 + SIGTERM
         : sum_of_wishes >= kClosed   ? 128 + SIGPIPE
                                      : 0;
}

}  // namespace trireme::train
