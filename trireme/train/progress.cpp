#include "trireme/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include "trireme/core/terminal.h"

namespace trireme::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr int kBar = 24, kLeastBar = 4;
constexpr int kColumns = 80;  // if the terminal does not say

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
  if (gpu_mib) line += fmt::format(R"(,"gpu_mib":{})", *gpu_mib);
  if (floor) line += fmt::format(R"(,"floor":{})", number(*floor));
  if (eval_loss) line += fmt::format(R"(,"eval_loss":{})", number(*eval_loss));
  if (eval_accuracy) line += fmt::format(R"(,"eval_accuracy":{})", number(*eval_accuracy));
  if (loss_scale)
    line += fmt::format(R"(,"loss_scale":{},"skipped":{})", number(*loss_scale), skipped ? 1 : 0);
  if (sent_mib) line += fmt::format(R"(,"sent_mib":{:.6g})", *sent_mib);
  if (drift)
    line += fmt::format(R"(,"block_loss":{},"drift":{},"meeting_ms":{:.3f})", number(*block_loss),
                        number(*drift), *meeting_ms);
  if (repeated) line += fmt::format(R"(,"repeated":{})", *repeated);
  if (staleness) {
    std::string counts;
    for (const auto& [missed, count] : *staleness)
      counts += fmt::format(R"({}"{}":{})", counts.empty() ? "" : ",", missed, count);
    line += fmt::format(R"(,"staleness":{{{}}})", counts);
  }
  if (!experts.empty()) line += fmt::format(R"(,"experts":{})", experts);
  return line + "}";
}

std::string draw_bar(const StepReport& report, int64_t steps, double seconds_left, int columns,
                     const std::string& unit) {
  const std::string loss = fmt::format("{}/{}  loss {:.4f}", report.step, steps, report.loss);
  const std::string floor = report.floor ? fmt::format(" (floor {:.4f})", *report.floor) : "";
  const std::string speed = fmt::format("  {} {}/s", rate(report.tokens_per_s), unit);
  const std::string left = fmt::format("  {} left", time_left(seconds_left));
  const std::string text = loss + floor + speed + left;
  const int room = std::max(1, columns - 1);
  const int width = std::min(kBar, room - static_cast<int>(text.size()) - 3);
  if (width < kLeastBar) {
    for (const std::string& shorter : {text, loss + speed + left, loss + left})
      if (static_cast<int>(shorter.size()) <= room) return shorter;
    return loss.substr(0, static_cast<std::size_t>(room));
  }
  const auto full = static_cast<int>(width * report.step / std::max<int64_t>(1, steps));
  return fmt::format("[{:=<{}}{: <{}}] {}", "", full, "", width - full, text);
}

Progress::Progress(int64_t first, int64_t steps, int64_t every, std::string unit)
    : first_(first),
      steps_(steps),
      every_(every),
      unit_(std::move(unit)),
      terminal_(core::is_terminal(STDOUT_FILENO)),
      began_(Clock::now()) {}

Progress::~Progress() {
  if (!bar_.empty()) print("", "");
}

double Progress::seconds_left(int64_t step) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const auto done = static_cast<double>(step - first_);
  return done > 0 ? seconds / done * static_cast<double>(steps_ - step) : 0;
}

std::string Progress::line_of(const StepReport& report) const {
  std::string text = fmt::format("step {}/{}  loss {:.4f}", report.step, steps_, report.loss);
  if (report.floor) text += fmt::format(" (floor {:.4f})", *report.floor);
  text += fmt::format("  {} {}/s  {} left", rate(report.tokens_per_s), unit_,
                      time_left(seconds_left(report.step)));
  if (report.eval_loss) text += fmt::format("  eval {:.4f}", *report.eval_loss);
  if (report.eval_accuracy) text += fmt::format(" ({:.2f} % right)", 100 * *report.eval_accuracy);
  if (report.skipped) text += fmt::format("  skipped at loss scale {:.6g}", *report.loss_scale);
  return text + "\n";
}

std::string Progress::bar_of(const StepReport& report) const {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return draw_bar(report, steps_, seconds_left(report.step), known ? size.ws_col : kColumns, unit_);
}

/// Prints the line where the bar was, and the bar below it.
void Progress::print(const std::string& line, const std::string& bar) {
  std::string text = terminal_ ? "\r\033[K" : "";
  text += line + bar;
  const bool wrote = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  bar_ = bar;
  if ((!wrote || std::fflush(stdout) != 0) && errno == EPIPE) closed_ = true;
}

/// The speed that people see is the mean of the steps since the last line: single steps differ too
/// much to say how fast training is.
void Progress::show(StepReport report) {
  weight_ += report.weight;
  step_ms_ += report.step_ms;
  if (step_ms_ > 0) report.tokens_per_s = weight_ / step_ms_ * 1e3;
  const bool last = report.step == steps_;
  const bool due = report.step % every_ == 0 || last || report.eval_loss;
  const auto now = Clock::now();
  const bool redraw = terminal_ && now - drawn_ >= kRedraw;
  if (!due && !redraw) return;
  drawn_ = now;
  if (due) weight_ = step_ms_ = 0;
  print(due ? line_of(report) : "", terminal_ && !last ? bar_of(report) : "");
}

void Progress::say(const std::string& sentence) {
  print(sentence + "\n", bar_);
}

}  // namespace trireme::train
