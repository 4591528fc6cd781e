#include "trireme/format/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/format/chat/interpreter.h"
#include "trireme/format/chat/library.h"
#include "trireme/format/file.h"

namespace trireme::format {

namespace {

constexpr std::string_view kChatMl =
    R"({% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr std::string_view kPlain =
    R"({% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('the role ' + message['role'] + ' is none of system, user and assistant') }}{% endif %}{{ message['role'] + ': ' + message['content'] + '\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %})";

const core::Json& messages_of(const core::Json& line) {
  const auto found = line.is_object() ? line.find("messages") : line.end();
  if (!line.is_object() || found == line.end() || !found->is_array() || found->empty())
    throw Error("it has no list 'messages'");
  for (const core::Json& each : *found)
    if (!each.is_object() || !each.contains("role") || !each["role"].is_string())
      throw Error("a message has no text 'role'");
  return *found;
}

/// The line's object with the first `count` messages only.
core::Json beginning_of(const core::Json& line, size_t count) {
  core::Json part = line;
  core::Json& messages = part["messages"];
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(count), messages.end());
  return part;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source, std::string name) : name_(std::move(name)) {
  try {
    statements_ =
        std::make_unique<const std::vector<chat::Statement>>(chat::parse_template(source));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name_, error.what()));
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const core::Json& line, Prompt prompt,
                                 const Tokenizer& tokenizer) const {
  chat::Dict variables;
  variables.emplace_back("bos_token", tokenizer.bos_token());
  variables.emplace_back("eos_token", tokenizer.eos_token());
  variables.emplace_back("add_generation_prompt", prompt == Prompt::Generation);
  for (const auto& [key, value] : line.items()) variables.emplace_back(key, chat::value_of(value));
  try {
    return chat::run_template(*statements_, std::move(variables));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name_, error.what()));
  }
}

Conversation ChatTemplate::converse(const core::Json& line, const Tokenizer& tokenizer) const {
  const core::Json& messages = messages_of(line);
  Conversation all{render(line, Prompt::None, tokenizer), {}};
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant") continue;
    if (i == 0) throw Error("its first message is an answer, to nothing");
    const std::string before = render(beginning_of(line, i), Prompt::Generation, tokenizer);
    const std::string with = render(beginning_of(line, i + 1), Prompt::None, tokenizer);
    // A template may end the last message of a conversation in another way than the others.
    const size_t same = static_cast<size_t>(
        std::mismatch(with.begin(), with.end(), all.text.begin(), all.text.end()).first -
        with.begin());
    const size_t end =
        before.size() +
        chat::stripped(with.substr(std::min(before.size(), with.size())), "", chat::Ends::Right)
            .size();
    if (!with.starts_with(before) || same < end)
      throw Error(fmt::format(
          "{}: message {}, an answer, is not what the template adds to the messages before it, so "
          "its tokens cannot be told from the rest",
          name_, i + 1));
    if (end > before.size()) all.answers.push_back({before.size(), end});
  }
  return all;
}

std::string default_chat_template(const Tokenizer& tokenizer) {
  const bool chat_ml = tokenizer.id_of("<|im_start|>") && tokenizer.id_of("<|im_end|>");
  return std::string(chat_ml ? kChatMl : kPlain);
}

ChosenTemplate choose_chat_template(const std::string& path, const Tokenizer& tokenizer) {
  constexpr int64_t kMostBytes = 1 << 20;
  if (!path.empty()) return {ChatTemplate(read_file(path, kMostBytes), path)};
  const std::string own = tokenizer.chat_template();
  if (!own.empty()) return {ChatTemplate(own, "the tokenizer's chat template")};
  const std::string source = default_chat_template(tokenizer);
  return {ChatTemplate(source, "the default chat template"),
          source == kPlain && tokenizer.end_of_text()};
}

}  // namespace trireme::format
