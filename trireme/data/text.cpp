#include "trireme/data/text.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/data/token_row.h"
#include "trireme/format/text/documents.h"

namespace trireme::data {

Text::Text(const std::string& path, const format::Tokenizer& tokenizer, int64_t seq,
           std::optional<int64_t> eod)
    : seq_(seq), eod_(eod) {
  const format::DocumentEncoder encoder(tokenizer);
  for (const std::string& file : format::document_files({path}))
    format::for_each_document(
        file, [&](std::string_view document) { encoder.append(document, tokens_); });
  tokens_.shrink_to_fit();
  if (size() < 1)
    throw Error(
        fmt::format("{}: its text is {} tokens, not enough for one sample, which needs "
                    "model.seq + 1 = {}",
                    path, tokens_.size(), seq + 1));
  if (eod_ && std::ranges::find(tokens_, *eod_) == tokens_.end())
    throw Error(
        fmt::format("{}: none of its {} tokens is {}, which should end documents; set data.eod to "
                    "the token that does, or leave data.documents out",
                    path, tokens_.size(), *eod_));
}

Sample Text::get(int64_t index) const {
  return get_positions(index, std::nullopt, {{{0, seq_}}, seq_});
}

Sample Text::get_positions(int64_t index, std::optional<int64_t> /*epoch*/,
                           const Positions& positions) const {
  const auto read = [&](int64_t begin, int64_t count, int64_t* to) {
    std::copy_n(tokens_.begin() + index * seq_ + begin, count, to);
  };
  return read_row(read, positions, eod_);
}

std::string Text::identity() const {
  return fmt::format("{} tokens of text, hash {:016x}", tokens_.size(),
                     core::hash64(tokens_.data(), sizeof(int32_t) * tokens_.size()));
}

}  // namespace trireme::data
