#pragma once

#include <string>
#include <vector>

#include "support/sentence.h"
#include "trireme/config/load.h"
#include "trireme/core/error.h"

namespace trireme::config {

using Overrides = std::vector<std::string>;

template <class Body>
std::string error_of(const Body& body) {
  return test::outcome_of<ConfigError>(body);
}

/// What a file gpt.toml with this text, and these overrides, is refused for.
inline std::string refusal(const std::string& text, const Overrides& overrides = {}) {
  return error_of([&] { parse(text, "gpt.toml", overrides); });
}

}  // namespace trireme::config
