#include "trireme/train/text_data.h"

#include "trireme/core/error.h"
#include "trireme/data/conversations.h"
#include "trireme/data/text.h"
#include "trireme/nn/loss.h"

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

int64_t document_end(const config::Config& config) {
  if (config.data.eod >= 0) return config.data.eod;
  const auto tokenizer = open_tokenizer(config);
  const auto end = tokenizer->end_of_text();
  if (!end)
    throw Error(
        fmt::format("data.documents = true, but the tokenizer ({}) has no token that ends a "
                    "document; set data.eod",
                    tokenizer->identity()));
  return *end;
}

std::shared_ptr<const data::Dataset> open_text(const config::Config& config,
                                               const std::string& path) {
  return std::make_shared<data::Text>(
      path, *open_tokenizer(config), config.model.seq,
      config.data.documents ? std::optional(document_end(config)) : std::nullopt);
}

std::shared_ptr<const data::Dataset> open_conversations(const config::Config& config,
                                                        const std::string& path) {
  static_assert(data::kNotLearned == nn::kIgnored);
  const auto tokenizer = open_tokenizer(config);
  const auto [chat, ends_document] = format::choose_chat_template(config.data.chat, *tokenizer);
  return std::make_shared<data::Conversations>(path,
                                               data::ChatOptions{.seq = config.model.seq,
                                                                 .tokenizer = tokenizer.get(),
                                                                 .chat_template = &chat,
                                                                 .ends_document = ends_document});
}

}  // namespace trireme::train
