#include "cli/status_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace trireme::cli {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kRedraw = 100ms;
constexpr auto kLine = 5s;

}  // namespace

StatusLine::StatusLine()
    : terminal_(::isatty(STDERR_FILENO) == 1),
      began_(Clock::now()),
      next_(terminal_ ? began_ + 500ms : began_ + kLine) {}

StatusLine::~StatusLine() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

bool StatusLine::due() const {
  return Clock::now() >= next_;
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

void StatusLine::show(const std::string& text) {
  if (!due()) return;
  if (terminal_)
    fmt::print(stderr, "\r\033[K{}", text);
  else
    fmt::print(stderr, "{}\n", text);
  std::fflush(stderr);
  drawn_ = terminal_;
  next_ = Clock::now() + (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine));
}

}  // namespace trireme::cli
