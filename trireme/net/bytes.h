#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/error.h"

namespace trireme::net {

/// Appends a number, little endian, as wide as its type.
template <std::unsigned_integral T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
}

/// Appends the length of a text, as a `Length`, and the text.
template <std::unsigned_integral Length>
void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<Length>(text.size()));
  out.append(text);
}

/// Takes numbers and texts off the front of a message. Throws CommError if the message ends too
/// early; never reads past its end and allocates nothing.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const std::string_view bytes = take(sizeof(T));
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    return static_cast<T>(value);
  }

  template <std::unsigned_integral Length>
  std::string_view text() {
    return take(number<Length>());
  }

  std::string_view take(size_t bytes) {
    if (bytes > left_.size()) throw CommError("sent a message that ends too early");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest() const { return left_; }

 private:
  std::string_view left_;
};

/// Makes received bytes fit for an error message: short, and without control characters.
std::string printable(std::string_view bytes);

}  // namespace trireme::net
