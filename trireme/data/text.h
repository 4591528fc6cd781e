#pragma once

#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/format/tokenizer.h"

namespace trireme::data {

/// Text files as one stream of tokens, which is made when it is opened and stays in memory: each
/// document, then the token that ends it. Sample i is tokens [i x seq, i x seq + seq + 1), as of
/// Tokens. `path` is a file or a folder (format/text/documents.h). With `eod`, as of Tokens.
class Text : public Dataset {
 public:
  Text(const std::string& path, const format::Tokenizer& tokenizer, int64_t seq,
       std::optional<int64_t> eod = std::nullopt);
  int64_t size() const override { return (static_cast<int64_t>(tokens_.size()) - 1) / seq_; }
  Sample get(int64_t index) const override;
  Sample get_positions(int64_t index, std::optional<int64_t> epoch,
                       const Positions& positions) const override;
  std::string identity() const override;

 private:
  std::vector<int32_t> tokens_;
  int64_t seq_;
  std::optional<int64_t> eod_;
};

}  // namespace trireme::data
