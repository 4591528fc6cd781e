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

/// A file of tokens as one stream, mapped into memory. Opening validates it; what is wrong is an
/// Error of one sentence. A file must not shrink while it is open. Any number of threads may read.
class TokenFile {
 public:
  /// `path` is NAME.idx, or NAME.bin or NAME (which is no file itself) with a NAME.idx beside it:
  /// Megatron's. llm.c's magic in the first bytes: llm.c's. Else it is raw.
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  TokenKind kind() const;
  /// The file that holds the tokens.
  const std::string& path() const;
  /// Tokens in the stream: Megatron's sequences one after the other, in the order of the index.
  int64_t size() const;
  void read(int64_t begin, int64_t count, int64_t* to) const;
  /// What tells this stream from another without reading all of it: the number of tokens, and a
  /// hash of up to 16 blocks of 32768 (the first and the last among them; a shorter stream is
  /// hashed whole). The same for the same tokens, wherever and in whichever kind of file they lie.
  std::string identity() const;
  /// The largest token. Reads everything.
  int64_t largest() const;

  struct Stream;

 private:
  std::unique_ptr<const Stream> stream_;
};

/// Writes such a file: `path` itself, or for Megatron NAME.bin and NAME.idx, all as one document.
/// It appears whole, or not at all; what was there stays until then.
void write_tokens(const std::string& path, TokenKind kind, std::span<const uint16_t> tokens);

}  // namespace trireme::format
