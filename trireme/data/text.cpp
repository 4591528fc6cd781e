#include "trireme/data/text.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/text/documents.h"

namespace trireme::data {

Text::Text(const std::string& path, const format::Tokenizer& tokenizer, int64_t seq) : seq_(seq) {
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
}

Sample Text::get(int64_t index) const {
  const at::Tensor text = at::empty({seq_ + 1}, at::kLong);
  std::copy_n(tokens_.begin() + index * seq_, seq_ + 1, text.data_ptr<int64_t>());
  return {text.narrow(0, 0, seq_), text.narrow(0, 1, seq_)};
}

std::string Text::identity() const {
  return fmt::format("{} tokens of text, hash {:016x}", tokens_.size(),
                     core::hash64(tokens_.data(), sizeof(int32_t) * tokens_.size()));
}

}  // namespace trireme::data
