#pragma once

#include "trireme/data/dataset.h"
#include "trireme/format/tokens.h"

namespace trireme::data {

/// A file of tokens. Sample i is tokens [i x seq, i x seq + seq + 1) of the stream: the first `seq`
/// are the input, the last `seq` the target. A token outside the vocabulary is an Error with its
/// position. With `eod`, the token that ends a document, samples say where documents begin; a file
/// without one is refused.
class Tokens : public Dataset {
 public:
  Tokens(const std::string& path, int64_t seq, int64_t vocab,
         std::optional<int64_t> eod = std::nullopt);
  int64_t size() const override { return (file_.size() - 1) / seq_; }
  Sample get(int64_t index) const override;
  Sample get_positions(int64_t index, std::optional<int64_t> epoch,
                       const Positions& positions) const override;
  std::string identity() const override { return file_.identity(); }

 private:
  void require_eod() const;

  format::TokenFile file_;
  int64_t seq_, vocab_;
  std::optional<int64_t> eod_;
};

}  // namespace trireme::data
