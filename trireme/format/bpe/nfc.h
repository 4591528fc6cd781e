#pragma once

#include <string>
#include <string_view>

namespace trireme::format {

/// Whether normalisation changes nothing: cheap to see in most texts. False: perhaps.
bool surely_nfc(std::string_view text);

/// Unicode's normalisation form C: e followed by U+0301 becomes U+00E9. Bytes that are not UTF-8
/// stay as they are, and nothing composes across them.
std::string to_nfc(std::string_view text);

}  // namespace trireme::format
