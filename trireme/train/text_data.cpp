#include "trireme/train/text_data.h"

#include "trireme/core/error.h"
#include "trireme/data/text.h"

namespace trireme::train {

namespace {

/// The tokenizer of data.tokenizer, whose tokens the model must know.
std::unique_ptr<const format::Tokenizer> open_tokenizer(const config::Config& config) {
  auto tokenizer = format::load_tokenizer(config.data.tokenizer);
  if (tokenizer->vocab_size() > config.model.vocab)
    throw Error(fmt::format("the tokenizer ({}) needs model.vocab = {} or more, but it is {}",
                            tokenizer->identity(), tokenizer->vocab_size(), config.model.vocab));
  return tokenizer;
}

}  // namespace

std::shared_ptr<const data::Dataset> open_text(const config::Config& config,
                                               const std::string& path) {
  return std::make_shared<data::Text>(path, *open_tokenizer(config), config.model.seq);
}

}  // namespace trireme::train
