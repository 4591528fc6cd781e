#include "trireme/data/conversations.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/file.h"
#include "trireme/format/json_object.h"
#include "trireme/format/text/documents.h"

namespace trireme::data {

namespace {
constexpr int64_t kMostFileBytes = int64_t{2} << 30;
}

Conversations::Conversations(const std::string& path, const ChatOptions& options)
    : seq_(options.seq) {
  for (const std::string& file : format::document_files({path})) {
    const std::string text = format::read_file(file, kMostFileBytes);
    format::for_each_line(text, [&](int64_t number, std::string_view line) {
      read_line(line, fmt::format("{}: line {}", file, number), options);
    });
  }
  if (size() < 1) throw Error(fmt::format("{}: there is no conversation in it", path));
}

void Conversations::append(std::string_view text, bool is_answer,
                           const format::Tokenizer& tokenizer) {
  tokenizer.encode(text, format::Around::Nothing, tokens_);
  learned_.resize(tokens_.size(), is_answer);
}

void Conversations::read_line(std::string_view line, const std::string& where,
                              const ChatOptions& options) {
  const core::Json json = format::parse_untrusted(line, where, 64);
  format::Conversation conversation;
  try {
    conversation = options.chat_template->converse(json, *options.tokenizer);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", where, error.what()));
  }
  const size_t begin = begins_.back();
  const std::string_view text = conversation.text;
  size_t done = 0;
  for (const auto& answer : conversation.answers) {
    append(text.substr(done, answer.begin - done), false, *options.tokenizer);
    append(text.substr(answer.begin, answer.end - answer.begin), true, *options.tokenizer);
    done = answer.end;
  }
  // What stands between the last answer and the end of the document is a part of ending it.
  const bool ends = options.ends_document && json["messages"].back()["role"] == "assistant";
  append(text.substr(done), ends, *options.tokenizer);
  if (options.ends_document) {
    tokens_.push_back(options.tokenizer->end_of_text().value());
    learned_.push_back(ends);
  }
  const size_t most = begin + static_cast<size_t>(seq_) + 1;
  const size_t end = std::min(tokens_.size(), most);
  // The first token is no target.
  const auto from = learned_.begin() + static_cast<std::ptrdiff_t>(std::min(begin + 1, end));
  if (std::find(from, learned_.begin() + static_cast<std::ptrdiff_t>(end), 1) ==
      learned_.begin() + static_cast<std::ptrdiff_t>(end))
    throw Error(conversation.answers.empty()
                    ? fmt::format("{}: no message is an answer, of the role 'assistant'", where)
                    : fmt::format("{}: its first answer begins after model.seq + 1 = {} tokens",
                                  where, seq_ + 1));
  tokens_.resize(end);
  learned_.resize(end);
  begins_.push_back(end);
}

Sample Conversations::get(int64_t index) const {
  const size_t begin = begins_[static_cast<size_t>(index)],
               count = begins_[static_cast<size_t>(index) + 1] - begin;
  const at::Tensor input = at::zeros({seq_}, at::kLong),
                   target = at::full({seq_}, kNotLearned, at::kLong);
  auto *inputs = input.data_ptr<int64_t>(), *targets = target.data_ptr<int64_t>();
  for (size_t i = 0; i < count; ++i) {
    const int64_t token = tokens_[begin + i];
    if (static_cast<int64_t>(i) < seq_) inputs[i] = token;
    if (i > 0 && learned_[begin + i]) targets[i - 1] = token;
  }
  return {input, target};
}

std::string Conversations::identity() const {
  const uint64_t parts[] = {core::hash64(tokens_.data(), sizeof(int32_t) * tokens_.size()),
                            core::hash64(learned_.data(), learned_.size()),
                            core::hash64(begins_.data(), sizeof(size_t) * begins_.size())};
  return fmt::format("{} conversations, {} tokens, hash {:016x}", size(), tokens_.size(),
                     core::hash64(parts, sizeof parts));
}

}  // namespace trireme::data
