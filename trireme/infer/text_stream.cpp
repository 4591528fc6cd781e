#include "trireme/infer/text_stream.h"

namespace trireme::infer {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// What the bytes begin with: a character of `bytes` bytes; 0: the beginning of one that is not
/// whole yet; below 0: that many bytes that are none.
int look_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const int length = first >= 0xc2 && first <= 0xdf   ? 2
                     : (first & 0xf0) == 0xe0         ? 3
                     : first >= 0xf0 && first <= 0xf4 ? 4
                                                      : -1;
  if (length < 0) return -1;
  // The second byte excludes spellings that are too long, surrogates, and what is above U+10FFFF.
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < length; ++i) {
    if (static_cast<std::size_t>(i) >= text.size()) return 0;
    const unsigned char next = byte(static_cast<std::size_t>(i));
    if (next < (i == 1 ? least : 0x80) || next > (i == 1 ? most : 0xbf)) return -i;
  }
  return length;
}

}  // namespace

std::string TextStream::push(std::string_view bytes) {
  waiting_ += bytes;
  std::string ready;
  std::size_t at = 0;
  while (at < waiting_.size()) {
    const std::string_view rest = std::string_view(waiting_).substr(at);
    const int length = look_at(rest);
    if (length == 0) break;
    const auto size = static_cast<std::size_t>(length > 0 ? length : -length);
    if (length > 0 || invalid_ == Invalid::Keep)
      ready += rest.substr(0, size);
    else
      ready += kReplacement;
    at += size;
  }
  waiting_.erase(0, at);
  return ready;
}

std::string TextStream::end() {
  std::string rest = std::move(waiting_);
  waiting_.clear();
  if (!rest.empty() && invalid_ == Invalid::Replace) rest = kReplacement;
  return rest;
}

}  // namespace trireme::infer
