#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/format/mapped_file.h"
#include "trireme/format/tokens.h"

namespace trireme::format {

enum class TokenType { U16, I32, U32 };

constexpr int64_t token_bytes(TokenType type) {
  return type == TokenType::U16 ? 2 : 4;
}

/// An open file of tokens, and which part of the stream is where in it.
struct TokenFile::Stream {
  /// Tokens [begin, begin of the next extent) of the stream are at byte `offset` of the file.
  struct Extent {
    int64_t begin, offset;
  };

  TokenKind kind = TokenKind::Raw;
  MappedFile file;
  TokenType type = TokenType::U16;
  int64_t size = 0;
  std::vector<Extent> extents;
};

constexpr int32_t kLlmCMagic = 20240520;      // version 1: uint16
constexpr int32_t kLlmCWideMagic = 20240801;  // version 7: uint32, for Llama 3
constexpr int64_t kLlmCHeaderBytes = 256 * 4;
constexpr char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;

/// The stream of NAME.bin as NAME.idx describes it.
TokenFile::Stream open_megatron(const std::string& bin, const std::string& idx);

}  // namespace trireme::format
