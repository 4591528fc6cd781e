#include "trireme/format/bpe/added_tokens.h"

#include <algorithm>

#include "trireme/format/bpe/scan.h"

namespace trireme::format {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  ends_.push_back(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t node = 0;
    for (const unsigned char byte : tokens_[i].content) {
      const auto [child, is_new] =
          children_.try_emplace(uint64_t{node} << 8 | byte, static_cast<uint32_t>(ends_.size()));
      if (is_new) ends_.push_back(-1);
      node = child->second;
    }
    if (node == 0) continue;  // an empty one is nowhere
    ends_[node] = static_cast<int32_t>(i);
    if (firsts_.find(tokens_[i].content[0]) == firsts_.npos) firsts_ += tokens_[i].content[0];
  }
}

size_t AddedTokens::next_start(std::string_view text, size_t from) const {
  if (firsts_.empty()) return text.npos;
  return firsts_.size() == 1 ? text.find(firsts_[0], from) : text.find_first_of(firsts_, from);
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (; at < text.size(); ++at) {
    const auto child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
    if (child == children_.end()) break;
    node = child->second;
    if (ends_[node] >= 0) longest = &tokens_[static_cast<size_t>(ends_[node])];
  }
  return longest;
}

AddedTokens::Found AddedTokens::find(std::string_view text, size_t from, size_t taken) const {
  for (size_t at = next_start(text, from); at != text.npos; at = next_start(text, at + 1)) {
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) continue;
    Found found{token, at, at + token->content.size(), at + token->content.size()};
    const auto is_space = [&](size_t i) {
      return class_of(char_at(text, i).code) == CharClass::Space;
    };
    while (token->lstrip && found.begin > taken) {
      size_t before = found.begin - 1;
      while (before > taken && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
      if (!is_space(before)) break;
      found.begin = before;
    }
    if (token->rstrip) found.end = Scan(text).run(CharClass::Space, found.end);
    return found;
  }
  return {nullptr, text.size(), text.size(), text.size()};
}

}  // namespace trireme::format
