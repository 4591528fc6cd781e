#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::infer {

/// Turns bytes that come token by token into whole characters: a token may end in the middle of
/// one. What is not UTF-8 is replaced by U+FFFD, or kept as it is.
///
///   push("d\xc3")   "d"             a letter and the first half of another
///   push("\xa9")    "\xc3\xa9"      é
///   end()           ""              or what never became a character
class TextStream {
 public:
  enum class Invalid : uint8_t { Replace, Keep };
  explicit TextStream(Invalid invalid) : invalid_(invalid) {}

  /// The characters that are whole now.
  std::string push(std::string_view bytes);
  std::string end();

 private:
  Invalid invalid_;
  std::string waiting_;  // the beginning of a character
};

}  // namespace trireme::infer
