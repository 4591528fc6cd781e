#include "trireme/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trireme::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr int kBar = 24;

std::string time_left(double seconds) {
  const auto all = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  if (all >= 3600) return fmt::format("{}:{:02}:{:02}", all / 3600, all / 60 % 60, all % 60);
  return fmt::format("{}:{:02}", all / 60, all % 60);
}

std::string rate(double per_s) {
  if (per_s >= 1e6) return fmt::format("{:.2f}M", per_s / 1e6);
  if (per_s >= 1e4) return fmt::format("{:.1f}k", per_s / 1e3);
  return fmt::format("{:.0f}", per_s);
}

}  // namespace

std::string StepReport::to_json() const {
  // JSON has no nan; a step in which nothing counted has no loss.
  const auto number = [](double value) {
    return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
  };
  std::string line = fmt::format(
      R"({{"step":{},"loss":{},"weight":{},"grad_norm":{},"lr":{},"tokens_per_s":{:.1f},"step_ms":{:.3f},"data_ms":{:.3f},"pss_mib":{})",
      step, number(loss), number(weight), number(grad_norm), number(lr), tokens_per_s, step_ms,
      data_ms, pss_mib);
  if (floor) line += fmt::format(R"(,"floor":{})", number(*floor));
  if (eval_loss) line += fmt::format(R"(,"eval_loss":{})", number(*eval_loss));
  return line + "}";
}

Progress::Progress(int64_t first, int64_t steps, int64_t every)
    : first_(first),
      steps_(steps),
      every_(every),
      terminal_(::isatty(STDOUT_FILENO) == 1),
      began_(Clock::now()) {}

Progress::~Progress() {
  if (bar_) std::fputc('\n', stdout);
  std::fflush(stdout);
}

std::string Progress::text_of(const StepReport& report) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const auto done = static_cast<double>(report.step - first_);
  const double left = done > 0 ? seconds / done * static_cast<double>(steps_ - report.step) : 0;
  std::string text = fmt::format("loss {:.4f}", report.loss);
  if (report.floor) text += fmt::format(" (floor {:.4f})", *report.floor);
  text += fmt::format("  {} tokens/s  {} left", rate(report.tokens_per_s), time_left(left));
  if (report.eval_loss) text += fmt::format("  eval {:.4f}", *report.eval_loss);
  return text;
}

void Progress::show(const StepReport& report) {
  const bool last = report.step == steps_;
  if (!terminal_) {
    if (report.step % every_ == 0 || last || report.eval_loss) {
      fmt::print("step {}/{}  {}\n", report.step, steps_, text_of(report));
      std::fflush(stdout);
    }
    return;
  }
  const auto now = Clock::now();
  if (!last && !report.eval_loss && now - drawn_ < kRedraw) return;
  drawn_ = now;
  const auto full = static_cast<int>(kBar * report.step / std::max<int64_t>(1, steps_));
  std::string line = fmt::format("[{:=<{}}{: <{}}] {}/{}  {}", "", full, "", kBar - full,
                                 report.step, steps_, text_of(report));
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    line = line.substr(0, size.ws_col - 1u);
  fmt::print("\r\033[K{}", line);
  bar_ = true;
  std::fflush(stdout);
}

void Progress::say(const std::string& sentence) {
  fmt::print("{}{}\n", bar_ ? "\r\033[K" : "", sentence);
  bar_ = false;
  std::fflush(stdout);
}

}  // namespace trireme::train
