#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::format {

/// Cuts a text into pieces that are tokenised one by one, as a regular expression of its tokenizer
/// says: matches, and what lies between them. Thread-safe.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// Where the piece that begins at `begin` ends. `begin` is 0, or an end that was returned.
  virtual size_t end_of(std::string_view text, size_t begin) const = 0;
};

// The published patterns. In order, each family's first alternative that matches is the piece.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::unique_ptr<const Splitter> make_gpt2_splitter();
/// `digits`: the most that are one piece: 3 in Llama 3, 1 in Qwen.
std::unique_ptr<const Splitter> make_llama3_splitter(int digits);
/// Any pattern, through PCRE2. Throws Error: what is wrong with it, or that there is no PCRE2.
std::unique_ptr<const Splitter> make_regex_splitter(const std::string& pattern);

/// The published patterns by hand, which is many times faster; all others through PCRE2.
std::unique_ptr<const Splitter> make_splitter(const std::string& pattern);

}  // namespace trireme::format
