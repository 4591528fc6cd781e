#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::core {

constexpr int64_t kKiB = int64_t{1} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

/// "512 B", "4 KiB", "1.5 MiB": at most one decimal.
std::string format_bytes(int64_t bytes);

/// "4096", "4K", "4KiB", "64M", "2G" (powers of 1024); nothing if it is none of these.
std::optional<int64_t> parse_bytes(std::string_view text);

/// "12 us", "3.4 ms", "30 s", "5 min".
std::string format_duration(std::chrono::nanoseconds duration);

/// Converts seconds, as people write timeouts, to a duration.
std::chrono::nanoseconds from_seconds(double seconds);

}  // namespace trireme::core
