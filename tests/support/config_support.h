#pragma once

#include <string>
#include <vector>

#include "trireme/config/load.h"
#include "trireme/core/error.h"

namespace trireme::config {

using Overrides = std::vector<std::string>;

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// What a file gpt.toml with this text, and these overrides, is refused for.
inline std::string refusal(const std::string& text, const Overrides& overrides = {}) {
  return error_of([&] { parse(text, "gpt.toml", overrides); });
}

}  // namespace trireme::config
