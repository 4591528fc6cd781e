#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::format {

/// Tokens that a tokenizer puts around a text, such as Llama's <|begin_of_text|>.
enum class Around : uint8_t { Template, Nothing };

/// Text to tokens and back. Any bytes are text, UTF-8 or not, and none is lost:
/// decode(encode(x, Around::Nothing)) == x, unless the tokenizer normalises. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of `text`. A special token that is spelled in the text becomes that token.
  virtual void encode(std::string_view text, Around around, std::vector<int32_t>& to) const = 0;
  std::vector<int32_t> encode(std::string_view text, Around around = Around::Template) const;

  /// The bytes of a token: perhaps a part of a character only. Empty for an id that is not there.
  virtual std::string_view bytes_of(int32_t id) const = 0;
  std::string decode(std::span<const int32_t> ids) const;

  /// One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  /// The id of a whole token as the tokenizer file spells it, special ones as "<|im_end|>" above
  /// all.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  /// Whether the id is a special token, which people who read a text do not want to see.
  virtual bool is_special(int32_t id) const = 0;
  /// The token that ends a document, where the tokenizer says which one does.
  virtual std::optional<int32_t> end_of_text() const = 0;
  /// The chat template that lies beside the tokenizer; empty: none.
  virtual std::string chat_template() const { return ""; }
  /// What tokenizer_config.json calls the tokens that begin and end a text, which chat templates
  /// use.
  virtual std::string bos_token() const { return ""; }
  virtual std::string eos_token() const { return ""; }
  /// In a few words: "byte-level BPE, 50257 tokens, hash 0123456789abcdef". The same for the same
  /// tokenizer, wherever its files lie.
  virtual std::string identity() const = 0;
};

/// `path` is a tokenizer.json, or a folder with one, or with vocab.json and merges.txt; "" or
/// "bytes": every byte is a token, and token 256 ends a document. Throws Error with one sentence.
std::unique_ptr<const Tokenizer> load_tokenizer(const std::string& path);

}  // namespace trireme::format
