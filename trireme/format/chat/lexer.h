#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::format::chat {

enum class TokenType {
  Text,
  BlockBegin,
  BlockEnd,
  PrintBegin,
  PrintEnd,
  Name,
  Number,
  String,
  Sign,
  End
};

struct Token {
  TokenType type = TokenType::End;
  std::string text;
  int line = 1;
};

/// The tokens of a template, the last of them End. White space around tags is handled here, as
/// Jinja does with trim_blocks and lstrip_blocks. Throws Error with the line.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace trireme::format::chat
