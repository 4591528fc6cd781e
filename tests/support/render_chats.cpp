// render_chats TEMPLATE TOKENIZER: for each line of JSON on stdin a line of JSON: the text of that
// conversation by the template, with and without the start of an answer, and where its answers are;
// or the error. For tests that ask Jinja2 the same.
#include <fmt/format.h>

#include <iostream>

#include "trireme/core/error.h"
#include "trireme/format/chat/chat_template.h"
#include "trireme/format/file.h"

using namespace trireme;

namespace {

core::Json answer_to(const std::string& line, const format::ChatTemplate& chat,
                     const format::Tokenizer& tokenizer) {
  using enum format::ChatTemplate::Prompt;
  core::Json answer;
  try {
    const core::Json json = core::parse_json(line, "a line");
    answer["text"] = chat.render(json, None, tokenizer);
    answer["prompt"] = chat.render(json, Generation, tokenizer);
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
  try {
    answer["answers"] = core::Json::array();
    for (const auto& each : chat.converse(core::parse_json(line, "a line"), tokenizer).answers)
      answer["answers"].push_back({each.begin, each.end});
  } catch (const Error& error) {
    answer["unclear"] = error.what();
  }
  return answer;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw Error("use render_chats TEMPLATE TOKENIZER");
  const auto tokenizer = format::load_tokenizer(argv[2]);
  const std::string source = std::string(argv[1]) == "default"
                                 ? format::default_chat_template(*tokenizer)
                                 : format::read_file(argv[1], 1 << 20);
  const format::ChatTemplate chat(source, argv[1]);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << answer_to(line, chat, *tokenizer).dump() << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << "render_chats: " << error.what() << "\n";
  return 1;
}
