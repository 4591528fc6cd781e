#include "trireme/train/text_data.h"

#include "trireme/core/error.h"
#include "trireme/data/conversations.h"
#include "trireme/data/text.h"
#include "trireme/format/file.h"
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
  constexpr int64_t kMostTemplateBytes = 1 << 20;
  const auto tokenizer = open_tokenizer(config);
  std::string source = config.data.chat.empty()
                           ? tokenizer->chat_template()
                           : format::read_file(config.data.chat, kMostTemplateBytes);
  std::string name = config.data.chat.empty() ? "the tokenizer's chat template" : config.data.chat;
  const bool by_default = source.empty();
  if (by_default) {
    source = format::default_chat_template(*tokenizer);
    name = "the default chat template";
  }
  const format::ChatTemplate chat_template(source, name);
  const bool has_end = source.find("<|im_end|>") != source.npos;
  return std::make_shared<data::Conversations>(
      path, data::ChatOptions{.seq = config.model.seq,
                              .tokenizer = tokenizer.get(),
                              .chat_template = &chat_template,
                              .ends_document = by_default && !has_end && tokenizer->end_of_text()});
}

}  // namespace trireme::train
