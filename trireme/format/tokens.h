#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::format {

enum class TokenKind {
  Raw,       ///< uint16 and nothing else
  LlmC,      ///< 256 int32 (magic, version, number of tokens, ...), then the tokens
  Megatron,  ///< NAME.bin with the tokens, NAME.idx with where the sequences lie
};

std::string_view to_string(TokenKind kind);

/// A file of tokens as one stream, mapped into memory. Opening validates it and throws Error with
/// one sentence. The file must not shrink while it is open. Thread-safe.
class TokenFile {
 public:
  /// Megatron, if `path` is NAME.idx, or NAME.bin or NAME (if that is not a file) with a NAME.idx
  /// beside it; llm.c, if it begins with llm.c's magic number; else raw.
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  TokenKind kind() const;
  /// The file that holds the tokens.
  const std::string& path() const;
  /// Tokens in the stream: Megatron's sequences one after the other, in the order of the index.
  int64_t size() const;
  void read(int64_t begin, int64_t count, int64_t* to) const;
  /// Identifies the stream without reading all of it: the number of tokens, and a hash of up to 16
  /// blocks of 32768 tokens, the first and the last among them (a shorter stream is hashed whole).
  /// The same for the same tokens, in any kind of file under any name.
  std::string identity() const;
  /// The largest token. Reads everything.
  int64_t largest() const;

  struct Stream;

 private:
  std::unique_ptr<const Stream> stream_;
};

/// Writes such a file: `path` itself, or for Megatron NAME.bin and NAME.idx, all as one document.
/// The file appears complete or not at all; an older one stays until then.
void write_tokens(const std::string& path, TokenKind kind, std::span<const uint16_t> tokens);

}  // namespace trireme::format
