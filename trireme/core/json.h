#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace trireme::core {

/// Keys keep the order in which they were written.
using Json = nlohmann::ordered_json;

/// Parses one document. Throws Error: "`what` is not JSON: ... at byte N".
Json parse_json(std::string_view text, std::string_view what);

}  // namespace trireme::core
