#include "trireme/data/tokens.h"

#include <ATen/ops/empty.h>

#include "trireme/core/error.h"

namespace trireme::data {

Tokens::Tokens(const std::string& path, int64_t seq, int64_t vocab)
    : file_(path), seq_(seq), vocab_(vocab) {
  if (size() < 1)
    throw Error(
        fmt::format("{}: {} tokens are not enough for one sample, which needs model.seq + "
                    "1 = {}",
                    path, file_.size(), seq + 1));
}

Sample Tokens::get(int64_t index) const {
  const at::Tensor text = at::empty({seq_ + 1}, at::kLong);
  auto* tokens = text.data_ptr<int64_t>();
  file_.read(index * seq_, seq_ + 1, tokens);
  for (int64_t i = 0; i <= seq_; ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_)
      throw Error(fmt::format("{}: token {} at position {} is not below model.vocab = {}",
                              file_.path(), tokens[i], index * seq_ + i, vocab_));
  }
  return {text.narrow(0, 0, seq_), text.narrow(0, 1, seq_)};
}

}  // namespace trireme::data
