#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/format/bpe/added_tokens.h"
#include "trireme/format/tokenizer.h"

namespace trireme::format {

/// What a tokenizer's files say.
struct BpeFacts {
  std::string path;                                         ///< for messages
  std::vector<std::pair<std::string, int32_t>> vocab;       ///< as the file spells tokens
  std::vector<std::pair<std::string, std::string>> merges;  ///< first to last
  std::vector<AddedToken> added;
  std::string pattern;                 ///< cuts the text into pieces
  bool nfc = false;                    ///< texts are normalised
  bool ignore_merges = false;          ///< a piece that is a token becomes it without merging
  std::vector<int32_t> before, after;  ///< around a whole text
  std::string bos_token, eos_token, chat_template;
};

/// Byte-level BPE. Throws Error with one sentence if the facts do not fit each other.
std::unique_ptr<const Tokenizer> make_bpe_tokenizer(BpeFacts facts);

}  // namespace trireme::format
