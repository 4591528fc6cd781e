#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/format/tokenizer.h"

namespace trireme::format {

namespace chat {
struct Statement;
}

/// A conversation's text with the places that a model learns to write.
///
///   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
///                                                         answer: ^^^^^^^^^^^^^^^
struct Conversation {
  struct Answer {
    size_t begin, end;  ///< bytes of the text
  };
  std::string text;
  std::vector<Answer> answers;
};

/// A chat template in the part of Jinja that templates of chat models use (docs/text.md). Its
/// spaces around tags are those of Hugging Face: trim_blocks and lstrip_blocks.
class ChatTemplate {
 public:
  /// `name` is named in errors. Throws Error with the line that cannot be read.
  ChatTemplate(const std::string& source, std::string name);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  enum class Prompt { None, Generation };  ///< does it end with the start of an answer?

  /// `line` has "messages", and perhaps other variables of the template ("tools"). Throws Error
  /// with the template's line, or with what its raise_exception says.
  std::string render(const core::Json& line, Prompt prompt, const Tokenizer& tokenizer) const;

  /// The conversation with its answers: what each message of the role assistant adds to the prompt
  /// before it, without white space at its end. Throws Error also if that is not what the template
  /// does.
  Conversation converse(const core::Json& line, const Tokenizer& tokenizer) const;

 private:
  std::string name_;
  std::unique_ptr<const std::vector<chat::Statement>> statements_;
};

/// The template that is used where there is none: ChatML if the tokenizer has <|im_start|> and
/// <|im_end|>, else lines of "role: content" with blank lines between them.
std::string default_chat_template(const Tokenizer& tokenizer);

/// The template of a model's conversations: the file `path`; if that is empty, the one beside the
/// tokenizer, or the default one.
struct ChosenTemplate {
  ChatTemplate chat;
  /// No token of the template ends an answer, so the one that ends a document does.
  bool ends_document = false;
};
ChosenTemplate choose_chat_template(const std::string& path, const Tokenizer& tokenizer);

}  // namespace trireme::format
