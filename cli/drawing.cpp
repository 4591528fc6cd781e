#include "cli/drawing.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace trireme::cli {

std::string xml_escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '"')
      safe += "&quot;";
    else
      safe += c >= ' ' && c < 127 ? c : '?';
  }
  return safe;
}

double nice_step(double least) {
  const double ten = std::pow(10, std::floor(std::log10(least)));
  for (const double times : {1.0, 2.0, 5.0})
    if (times * ten >= least) return times * ten;
  return 10 * ten;
}

std::vector<double> nice_ticks(double low, double high, int most) {
  std::vector<double> ticks;
  if (!(high > low) || most < 1) return ticks;
  const double step = nice_step((high - low) / most);
  const double slack = 1e-9 * (high - low);
  // Nearly the same numbers: counting steps up to them would not reach the next one.
  if (std::max(std::abs(low), std::abs(high)) / step > 1e12) return ticks;
  for (double i = std::ceil((low - slack) / step); i * step <= high + slack; ++i)
    ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

int terminal_columns() {
  if (const char* text = std::getenv("COLUMNS"); text != nullptr) {
    int said = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), said);
    if (error == std::errc() && said > 0) return said;
  }
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
    return size.ws_col;
  return 0;
}

}  // namespace trireme::cli
