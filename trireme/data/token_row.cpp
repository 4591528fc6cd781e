#include "trireme/data/token_row.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace trireme::data {

namespace {

/// Where the document of a position begins: after the last `eod` before it.
int64_t document_at(const ReadTokens& read, int64_t position, int64_t eod) {
  constexpr int64_t kBlock = 1024;
  std::vector<int64_t> block(static_cast<std::size_t>(std::min(kBlock, position)));
  for (int64_t end = position; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kBlock);
    read(begin, end - begin, block.data());
    for (int64_t i = end; i > begin; --i)
      if (block[static_cast<std::size_t>(i - 1 - begin)] == eod) return i;
    end = begin;
  }
  return 0;
}

at::Tensor documents_of(const at::Tensor& tokens, int64_t begin, int64_t first, int64_t eod) {
  const at::Tensor documents = at::empty_like(tokens);
  const auto* token = tokens.const_data_ptr<int64_t>();
  auto* to = documents.data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    if (i > 0 && token[i - 1] == eod) first = begin + i;
    to[i] = first;
  }
  return documents;
}

at::Tensor side_by_side(const std::vector<at::Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : parts.empty() ? at::empty({0}, at::kLong) : at::cat(parts);
}

}  // namespace

Sample read_row(const ReadTokens& read, const Positions& positions, std::optional<int64_t> eod) {
  std::vector<at::Tensor> inputs, targets, documents;
  for (const auto& [begin, count] : positions.ranges()) {
    const at::Tensor text = at::empty({count + 1}, at::kLong);
    read(begin, count + 1, text.data_ptr<int64_t>());
    inputs.push_back(text.narrow(0, 0, count));
    targets.push_back(text.narrow(0, 1, count));
    if (eod)
      documents.push_back(documents_of(inputs.back(), begin, document_at(read, begin, *eod), *eod));
  }
  return {side_by_side(inputs), side_by_side(targets),
          eod ? side_by_side(documents) : at::Tensor()};
}

}  // namespace trireme::data
