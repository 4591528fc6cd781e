// Keys that are lists of tables: optim.groups, and data.kind as a blend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/config_support.h"
#include "trireme/config/keys.h"
#include "trireme/config/text.h"
#include "trireme/config/validate.h"

namespace trireme::config {
namespace {

using Groups = std::vector<ParameterGroup>;

const Groups kTwo = {{.match = "*.bias", .lr = 1e-4}, {.match = "h.*", .weight_decay = 0}};

TEST(ConfigTables, TakesEverySpellingOfTheSameList) {
  for (const char* text :
       {"optim.groups = [{match = '*.bias', lr = 1e-4}, {match = 'h.*', weight_decay = 0}]",
        "[optim]\ngroups = [\n  {lr = 1e-4, match = '*.bias'},  # one\n  {match = \"h.*\", "
        "weight_decay = 0.0},\n]",
        "[[optim.groups]]\nmatch = '*.bias'\nlr = 0.0001\n[[optim.groups]]\nweight_decay = "
        "0\nmatch = 'h.*'"}) {
    const Config config = parse(text, "a");
    EXPECT_EQ(config.optim.groups, kTwo) << text;
    EXPECT_EQ(parse(to_toml(config), "a"), config);
  }
  EXPECT_EQ(parse("optim.groups = []", "a").optim.groups, Groups{});
}

TEST(ConfigTables, AnOverrideReplacesTheWholeList) {
  const Overrides overrides = {"optim.groups=[{match=\"*.bias\", lr=1e-4}]"};
  EXPECT_EQ(parse("[[optim.groups]]\nmatch = 'x'\nlr = 5", "a", overrides).optim.groups,
            (Groups{{.match = "*.bias", .lr = 1e-4}}));
  EXPECT_EQ(parse("[[optim.groups]]\nmatch = 'x'", "a", Overrides{"optim.groups=[]"}).optim.groups,
            Groups{});
  EXPECT_EQ(refusal("", {"optim.groups=[{match='x', rate=1}]"}),
            "override 'optim.groups=[{match='x', rate=1}]': unknown key 'optim.groups[0].rate'");
  EXPECT_EQ(refusal("", {"optim.groups={match='x'}"}),
            "override 'optim.groups={match='x'}': optim.groups is a table; it must be a list of "
            "tables");
}

TEST(ConfigTables, SaysWhereAndWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[optim]\ngroups = [{match = 'a'},\n  {match = 'b', wd = 1}]",
       "gpt.toml:3:17: unknown key 'optim.groups[1].wd'; did you mean 'weight_decay'?"},
      {"[[optim.groups]]\nmatch = 'a'\nweight_deca = 1",
       "gpt.toml:3:1: unknown key 'optim.groups[0].weight_deca'; did you mean 'weight_decay'?"},
      {"optim.groups = [{match = 'a', lr = 'fast'}]",
       "gpt.toml:1:36: optim.groups[0].lr = \"fast\" is a string; it must be a number"},
      {"optim.groups = [{match = 'a', lr = -1}]",
       "gpt.toml:1:36: optim.groups[0].lr = -1.0 is out of range; it must be at least 0"},
      {"optim.groups = [{match = 'a', lr = nan}]",
       "gpt.toml:1:36: optim.groups[0].lr = nan is not finite; it must be a finite number"},
      {"optim.groups = [{match = 'a', lr = [1]}]",
       "gpt.toml:1:36: optim.groups[0].lr is an array; it must be a number"},
      {"optim.groups = [{match = ''}]",
       "gpt.toml:1:26: optim.groups[0].match = \"\" is empty; it must be some text"},
      {"optim.groups = [{match = 3}]",
       "gpt.toml:1:26: optim.groups[0].match = 3 is a whole number; it must be a string"},
      {"optim.groups = [{match = 'a'}, {lr = 3}]",
       "gpt.toml:1:32: optim.groups[1] has no 'match', which it needs"},
      {"optim.groups = ['a']",
       "gpt.toml:1:16: optim.groups = [\"a\"] is an array of strings; it must be a list of tables"},
      {"optim.groups = 'a'",
       "gpt.toml:1:16: optim.groups = \"a\" is a string; it must be a list of tables"},
      {"optim.groups = [{match = 'a'}, 3]",
       "gpt.toml:1:16: optim.groups is an array of different things; it must be a list of tables"},
      {"optim.betas = [{match = 'a'}]",
       "gpt.toml:1:15: optim.betas is a list of tables; it must be an array of numbers"},
      {"[[optim]]\nlr = 1", "gpt.toml:1:1: 'optim' is a section, not a key"}};
  for (const auto& [text, message] : cases) EXPECT_EQ(refusal(text), message);
  std::string many = "optim.groups = [";
  for (int i = 0; i < 1025; ++i) many += "{match='a'},";
  EXPECT_EQ(refusal(many + "]"),
            "gpt.toml:1:16: optim.groups has 1025 tables; it must have at most 1024");
}

TEST(ConfigTables, AKeyMayBeAWordOrAList) {
  const Config blend = parse(
      "data.kind = [{kind = 'tokens', path = 'a', weight = 2}, {kind = 'tokens', path = 'b'}]",
      "a");
  EXPECT_EQ(blend.data.blend,
            (std::vector<DataSource>{{.path = "a", .weight = 2}, {.path = "b", .weight = 1}}));
  EXPECT_EQ(parse(to_toml(blend), "a"), blend);
  const Config one = parse("data.kind = [{kind = 'tokens'}]", "a", Overrides{"data.kind=markov"});
  EXPECT_EQ(one, parse("", "a"));
  EXPECT_EQ(refusal("data.kind = [{kind = 'tokns'}]").substr(0, 68),
            "gpt.toml:1:22: data.kind[0].kind = \"tokns\" is none of \"markov\", \"tok");
  EXPECT_EQ(refusal("data.kind = 3"),
            "gpt.toml:1:13: data.kind = 3 is a whole number; it must be a string or a list of "
            "tables");
  EXPECT_NE(data_difference(blend, one), std::nullopt);
}

TEST(ConfigTables, AListMadeByHandIsHeldToTheColumns) {
  Config config = resolved({});
  config.optim.groups = {{.match = "a", .lr = -1}};
  EXPECT_EQ(error_of([&] { validate(config); }),
            "optim.groups[0].lr = -1.0 is out of range; it must be at least 0");
}

}  // namespace
}  // namespace trireme::config
