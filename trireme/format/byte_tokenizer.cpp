#include "trireme/format/byte_tokenizer.h"

#include <array>

namespace trireme::format {

namespace {

constexpr int32_t kEndOfText = 256;
constexpr std::string_view kEndOfTextName = "<|endoftext|>";

constexpr auto kBytes = [] {
  std::array<char, 256> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

class ByteTokenizer : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, Around /*around*/, std::vector<int32_t>& to) const override {
    to.reserve(to.size() + text.size());
    for (const char c : text) to.push_back(static_cast<unsigned char>(c));
  }

  std::string_view bytes_of(int32_t id) const override {
    if (id == kEndOfText) return kEndOfTextName;
    if (id < 0 || id > kEndOfText) return {};
    return {&kBytes[static_cast<size_t>(id)], 1};
  }

  int64_t vocab_size() const override { return kEndOfText + 1; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    if (token == kEndOfTextName) return kEndOfText;
    if (token.size() == 1) return static_cast<unsigned char>(token[0]);
    return std::nullopt;
  }

  bool is_special(int32_t id) const override { return id == kEndOfText; }
  std::optional<int32_t> end_of_text() const override { return kEndOfText; }
  std::string identity() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<const Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace trireme::format
