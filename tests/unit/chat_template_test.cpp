#include "trireme/format/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.h"
#include "trireme/core/error.h"

namespace trireme::format {
namespace {

using test::outcome_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kTalk =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
       {"role": "user", "content": "2?"}, {"role": "assistant", "content": "3 "}]})";

const char* const kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::vector<std::string> answers(const std::string& source, const std::string& line) {
  const auto bytes = load_tokenizer("bytes");
  const Conversation talk =
      ChatTemplate(source, "t.jinja").converse(core::Json::parse(line), *bytes);
  std::vector<std::string> all;
  for (const auto& each : talk.answers)
    all.push_back(talk.text.substr(each.begin, each.end - each.begin));
  return all;
}

std::string complaint(const std::string& source, const std::string& line = kTalk) {
  return outcome_of<Error>([&] { answers(source, line); });
}

TEST(ChatTemplate, FindsTheAnswersAndTheTokenThatEndsThem) {
  EXPECT_THAT(answers(kChatMl, kTalk), ElementsAre("Hello.<|im_end|>", "3 <|im_end|>"));
  EXPECT_THAT(answers(default_chat_template(*load_tokenizer("bytes")), kTalk),
              ElementsAre("Hello.", "3"));
}

TEST(ChatTemplate, SaysWhatIsWrongWithItAndWhere) {
  EXPECT_THAT(complaint("a\n{% if x %}"), HasSubstr("t.jinja: line 2: 'endif' is missing"));
  EXPECT_THAT(complaint("\n{% macro f() %}{% endmacro %}"),
              HasSubstr("line 2: the tag 'macro' is not supported"));
  EXPECT_THAT(complaint("{{ messages | sort }}"), HasSubstr("the filter 'sort' is not supported"));
  EXPECT_THAT(complaint("{{ strftime_now('%Y') }}"),
              HasSubstr("the function 'strftime_now' is not supported"));
  EXPECT_THAT(complaint("{{ nobody.name }}"), HasSubstr("'nobody' is undefined"));
  EXPECT_THAT(complaint("{{ 'open }}"), HasSubstr("a string is not closed"));
  EXPECT_THAT(complaint("{{ " + std::string(1000, '(') + std::string(1000, ')') + " }}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(
      complaint("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
      HasSubstr("does not come to an end"));
  const std::string twice =
      "{% set ns = namespace(a=[1]) %}{% for i in range(40) %}"
      "{% set ns.a = [ns.a, ns.a] %}{% endfor %}";
  EXPECT_THAT(complaint(twice + "{{ ns.a | tojson }}"), HasSubstr("over 64 MiB"));
  EXPECT_THAT(complaint(twice + "{% set first = ns.a %}{% set ns.b = [ns.a[0], ns.a[0]] %}"
                                "{{ first == ns.b }}"),
              HasSubstr("too many elements to be compared"));
  EXPECT_THAT(complaint("{{ range(100000) | join('x' * 60000000) }}"),
              HasSubstr("a text is too long"));
}

TEST(ChatTemplate, RaisesItsOwnErrorForAnUnknownRole) {
  const std::string source = default_chat_template(*load_tokenizer("bytes"));
  EXPECT_THAT(complaint(source, R"({"messages": [{"role": "robot", "content": "x"}]})"),
              HasSubstr("the role robot is none of system, user and assistant"));
  EXPECT_THAT(complaint(source, R"({"text": "x"})"), HasSubstr("no list 'messages'"));
}

TEST(ChatTemplate, IsRefusedIfAnswersCannotBeToldFromTheRest) {
  // It prints how many messages there are before them.
  EXPECT_THAT(
      complaint("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"),
      HasSubstr("message 2, an answer, is not what the template adds"));
}

}  // namespace
}  // namespace trireme::format
