#include "trireme/data/tokens.h"

#include <algorithm>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/data/token_row.h"

namespace trireme::data {

Tokens::Tokens(const std::string& path, int64_t seq, int64_t vocab, std::optional<int64_t> eod)
    : file_(path), seq_(seq), vocab_(vocab), eod_(eod) {
  if (size() < 1)
    throw Error(
        fmt::format("{}: {} tokens are not enough for one sample, which needs model.seq + "
                    "1 = {}",
                    path, file_.size(), seq + 1));
  if (eod_) require_eod();
}

/// Throws unless the file has the token that ends a document. Reads up to the first.
void Tokens::require_eod() const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int64_t> block(kBlock);
  for (int64_t begin = 0; begin < file_.size(); begin += kBlock) {
    const int64_t count = std::min(kBlock, file_.size() - begin);
    file_.read(begin, count, block.data());
    if (std::find(block.begin(), block.begin() + count, *eod_) != block.begin() + count) return;
  }
  throw Error(fmt::format(
      "{}: none of its {} tokens is {}, which should end documents; set data.eod to the "
      "token that does, or leave data.documents out",
      file_.path(), file_.size(), *eod_));
}

Sample Tokens::get(int64_t index) const {
  return get_positions(index, std::nullopt, {{{0, seq_}}, seq_});
}

Sample Tokens::get_positions(int64_t index, std::optional<int64_t> /*epoch*/,
                             const Positions& positions) const {
  const auto read = [&](int64_t begin, int64_t count, int64_t* to) {
    file_.read(index * seq_ + begin, count, to);
    for (int64_t i = 0; i < count; ++i)
      if (to[i] < 0 || to[i] >= vocab_)
        throw Error(fmt::format("{}: token {} at position {} is not below model.vocab = {}",
                                file_.path(), to[i], index * seq_ + begin + i, vocab_));
  };
  return read_row(read, positions, eod_);
}

}  // namespace trireme::data
