#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::core {

/// The variable's value; nothing if it is unset or empty.
std::optional<std::string> env(const char* name);

/// The variable as a whole number. Throws ConfigError that names it and shows what it holds.
std::optional<int64_t> env_int(const char* name);

/// The variable as a number, such as seconds. Throws ConfigError like env_int.
std::optional<double> env_double(const char* name);

/// `text` as a whole number, all of it; nothing if it is not one.
std::optional<int64_t> parse_int(std::string_view text);

/// `text` as a finite number, all of it; nothing if it is not one.
std::optional<double> parse_double(std::string_view text);

}  // namespace trireme::core
