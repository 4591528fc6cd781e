#pragma once

#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/format/chat/chat_template.h"

namespace trireme::data {

/// Targets of this value do not count: nn::kIgnored.
constexpr int64_t kNotLearned = -100;

/// How conversations become tokens.
struct ChatOptions {
  int64_t seq = 128;
  const format::Tokenizer* tokenizer = nullptr;
  const format::ChatTemplate* chat_template = nullptr;
  /// The token that ends a document follows each conversation, and is learned after an answer.
  bool ends_document = false;
};

/// Conversations for finetuning, one on each line of .jsonl files: {"messages": [{"role": "user",
/// "content": "..."}, ...]}. They are read when it is opened, and stay in memory as tokens. Sample
/// i is conversation i, from its beginning; of one with more than seq + 1 tokens the end is
/// missing. Only tokens of answers are targets; the others, and what is added to shorter ones, do
/// not count.
class Conversations : public Dataset {
 public:
  /// Throws Error with file and line: no JSON, an unknown role, no answer.
  Conversations(const std::string& path, const ChatOptions& options);
  int64_t size() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  Sample get(int64_t index) const override;
  std::string identity() const override;

 private:
  void read_line(std::string_view line, const std::string& where, const ChatOptions& options);
  void append(std::string_view text, bool is_answer, const format::Tokenizer& tokenizer);

  std::vector<int32_t> tokens_;
  std::vector<uint8_t> learned_;   // 1: the token belongs to an answer
  std::vector<size_t> begins_{0};  // of each conversation among the tokens, and the end
  int64_t seq_;
};

}  // namespace trireme::data
