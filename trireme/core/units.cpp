#include "trireme/core/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "trireme/core/env.h"

namespace trireme::core {

namespace {

/// 1.5 as "1.5", 2.0 as "2".
std::string short_number(double value) {
  const double rounded = std::round(value * 10) / 10;
  return rounded == std::floor(rounded) ? fmt::format("{:.0f}", rounded)
                                        : fmt::format("{:.1f}", rounded);
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return short_number(value) + " " + kNames[unit];
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  const auto digits = text.find_first_not_of("0123456789");
  const auto number = parse_int(text.substr(0, digits));
  if (!number || *number < 0) return std::nullopt;
  const std::string_view unit = digits == text.npos ? "" : text.substr(digits);
  int64_t scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  if (unit == "K" || unit == "KB" || unit == "KiB") scale = kKiB;
  if (unit == "M" || unit == "MB" || unit == "MiB") scale = kMiB;
  if (unit == "G" || unit == "GB" || unit == "GiB") scale = kGiB;
  if (scale == 0 || *number > INT64_MAX / scale) return std::nullopt;
  return *number * scale;
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const double ns = static_cast<double>(duration.count());
  if (ns < 1e6) return short_number(ns / 1e3) + " us";
  if (ns < 1e9) return short_number(ns / 1e6) + " ms";
  if (ns < 300e9) return short_number(ns / 1e9) + " s";
  return short_number(ns / 60e9) + " min";
}

std::chrono::nanoseconds from_seconds(double seconds) {
  // Longer than any real timeout, and still far from overflow.
  constexpr double kMost = 1e9;
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, kMost) * 1e9));
}

}  // namespace trireme::core
