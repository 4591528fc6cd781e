#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme::format {

/// How tokenizer files spell bytes: each as one printable character. Bytes that are printable in
/// Latin-1 are spelled as themselves, the others as U+0100, U+0101, ... in their order: a space is
/// Ġ.
std::string spelled(std::string_view bytes);

/// The bytes that a token's spelling stands for; nullopt if a character is none of the alphabet.
std::optional<std::string> unspelled(std::string_view token);

}  // namespace trireme::format
