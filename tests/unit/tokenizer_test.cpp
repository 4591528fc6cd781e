#include "trireme/format/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/format/bpe/merges.h"
#include "trireme/format/bpe/nfc.h"
#include "trireme/format/bpe/splitter.h"
#include "trireme/format/bpe/train.h"

namespace trireme::format {
namespace {

using test::outcome_of;
using test::put_bytes;
using test::random_bytes;
using test::Scratch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> pieces(const Splitter& splitter, const std::string& text) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = splitter.end_of(text, begin);
    all.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return all;
}

core::Json small_tokenizer() {
  BpeTrainer trainer(Family::Gpt2);
  trainer.add("the lower, the lowest: low and lower, the new and the newest");
  return core::Json::parse(to_tokenizer_json(trainer.train(280, {"<|endoftext|>"})));
}

/// The sentence with which a changed tokenizer.json is refused.
template <class Change>
std::string refusal(const Change& change) {
  const Scratch folder;
  core::Json json = small_tokenizer();
  change(json);
  put_bytes(folder / "tokenizer.json", json.dump());
  const std::string sentence = outcome_of<Error>([&] { load_tokenizer(folder.path()); });
  const size_t at = sentence.find("tokenizer.json");
  return at == sentence.npos ? sentence : sentence.substr(at);
}

TEST(Splitter, CutsWordsNumbersAndWhiteSpaceAsEachFamilyDoes) {
  const std::string text = "I'LL pay 12345  dollars\n\n now!?\n";
  EXPECT_THAT(
      pieces(*make_gpt2_splitter(), text),
      ElementsAre("I", "'", "LL", " pay", " 12345", " ", " dollars", "\n\n", " now", "!?", "\n"));
  EXPECT_THAT(
      pieces(*make_llama3_splitter(3), text),
      ElementsAre("I", "'LL", " pay", " ", "123", "45", " ", " dollars", "\n\n", " now", "!?\n"));
  EXPECT_THAT(pieces(*make_llama3_splitter(1), "x42"), ElementsAre("x", "4", "2"));
}

/// Was this built with PCRE2?
bool pcre2_available() {
  static const bool available = outcome_of<Error>([] {
                                  make_regex_splitter("a");
                                }).find("built without") == std::string::npos;
  return available;
}

TEST(Splitter, ByHandIsWhatPcre2Finds) {
  if (!pcre2_available()) GTEST_SKIP() << "no PCRE2 (scripts/setup installs it)";
  const std::string parts[] = {" ",       "  ",           "\n",         "\r\n",   "\t", "'s",
                               "'RE",     "'\u017F",      "12",         "1234",   "a",  "B\u00E9",
                               "e\u0301", "\u4E2D\u6587", "\u00A0",     "\u3000", "!",  "...",
                               "_",       "\u0663",       "\U0001F600", "'"};
  std::mt19937 random(3);
  const std::pair<std::unique_ptr<const Splitter>, std::string_view> both[] = {
      {make_gpt2_splitter(), kGpt2Pattern},
      {make_llama3_splitter(3), kLlama3Pattern},
      {make_llama3_splitter(1), kQwenPattern}};
  for (const auto& [by_hand, pattern] : both) {
    const auto regex = make_regex_splitter(std::string(pattern));
    for (int i = 0; i < 5000; ++i) {
      std::string text;
      for (size_t n = random() % 12 + 1; n > 0; --n) text += parts[random() % std::size(parts)];
      ASSERT_EQ(pieces(*by_hand, text), pieces(*regex, text)) << text;
    }
  }
}

TEST(Merger, FindsTheSameInLongPiecesAsInShortOnes) {
  // "aa" before "ab" before "aaaa"; a long run is cut into as many as fit.
  MergeTable table(4);
  table.add(0, 0, {0, 2});
  table.add(0, 1, {1, 3});
  table.add(2, 2, {2, 4});
  const auto merged = [&](size_t runs) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < runs; ++i) tokens.insert(tokens.end(), {0, 0, 0, 0, 0, 1});
    Merger merger;
    tokens.resize(merger.merge(table, tokens));
    return tokens;
  };
  const std::vector<int32_t> one = merged(1);
  EXPECT_THAT(one, ElementsAre(4, 3));
  std::vector<int32_t> many;
  for (int i = 0; i < 100; ++i) many.insert(many.end(), one.begin(), one.end());
  EXPECT_EQ(merged(100), many);
}

TEST(Nfc, ComposesOrdersMarksAndLeavesBytesThatAreNoText) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("s\u0307\u0323"), "\u1E69");
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_TRUE(surely_nfc("plain caf\u00E9"));
}

TEST(Tokenizer, GivesBackAnyBytes) {
  const Scratch folder;
  put_bytes(folder / "tokenizer.json", small_tokenizer().dump());
  const auto bpe = load_tokenizer(folder.path()), bytes = load_tokenizer("bytes");
  for (unsigned seed = 0; seed < 50; ++seed) {
    const std::string text = random_bytes(500, seed) + "lower\xC3";
    EXPECT_EQ(bpe->decode(bpe->encode(text)), text);
    EXPECT_EQ(bytes->decode(bytes->encode(text)), text);
  }
  EXPECT_LT(bpe->encode("the lower").size(), 6u) << "something is merged";
  EXPECT_EQ(bpe->end_of_text(), bpe->id_of("<|endoftext|>"));
  EXPECT_THAT(bpe->encode("<|endoftext|>"), ElementsAre(*bpe->end_of_text()));
  EXPECT_TRUE(bpe->is_special(*bpe->end_of_text()));
}

TEST(Tokenizer, OfVocabAndMergesIsTheOneOfTokenizerJson) {
  const Scratch whole, parts;
  const core::Json json = small_tokenizer();
  put_bytes(whole / "tokenizer.json", json.dump());
  put_bytes(parts / "vocab.json", json["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const auto& pair : json["model"]["merges"])
    merges += pair[0].get<std::string>() + ' ' + pair[1].get<std::string>() + '\n';
  put_bytes(parts / "merges.txt", merges);
  const auto one = load_tokenizer(whole.path()), other = load_tokenizer(parts.path());
  const std::string text = "the newest lower<|endoftext|> und Gr\u00FC\u00DFe 12";
  EXPECT_EQ(one->encode(text), other->encode(text));
  put_bytes(parts / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  EXPECT_THAT(outcome_of<Error>([&] { load_tokenizer(parts.path()); }),
              HasSubstr("LlamaTokenizer"));
}

TEST(Tokenizer, RefusesWhatItDoesNotSupportAndNamesIt) {
  const auto says = [](const std::string& text) { return HasSubstr(text); };
  EXPECT_THAT(refusal([](auto& json) { json["model"]["type"] = "WordPiece"; }),
              says("the model 'WordPiece'"));
  EXPECT_THAT(refusal([](auto& json) {
                json["normalizer"] = {{"type", "Lowercase"}};
              }),
              says("the normalizer 'Lowercase'"));
  EXPECT_THAT(refusal([](auto& json) {
                json["pre_tokenizer"] = {{"type", "Metaspace"}};
              }),
              says("'Metaspace'"));
  EXPECT_THAT(refusal([](auto& json) {
                json["post_processor"] = {{"type", "BertProcessing"}};
              }),
              says("'BertProcessing'"));
  EXPECT_THAT(refusal([](auto& json) {
                json["decoder"] = {{"type", "WordPiece"}};
              }),
              says("the decoder 'WordPiece'"));
  EXPECT_THAT(refusal([](auto& json) {
                json["truncation"] = {{"max_length", 5}};
              }),
              says("truncation"));
  EXPECT_THAT(refusal([](auto& json) { json["model"]["dropout"] = 0.1; }), says("'dropout'"));
  EXPECT_THAT(refusal([](auto& json) { json["model"]["byte_fallback"] = true; }),
              says("byte_fallback"));
  EXPECT_THAT(refusal([](auto& json) { json["model"]["magic"] = 1; }),
              says("'magic' in its model"));
  EXPECT_THAT(refusal([](auto& json) { json["added_tokens"][0]["single_word"] = true; }),
              says("single_word"));
  EXPECT_THAT(refusal([](auto& json) { json["model"]["vocab"].erase("a"); }),
              says("no token for byte 97"));
  EXPECT_THAT(refusal([](auto& json) {
                json["model"]["merges"][0] = {"a", "qq"};
              }),
              says("'qq' is not in the vocabulary"));
  EXPECT_THAT(
      refusal([](auto& json) { json["model"]["vocab"]["b"] = json["model"]["vocab"]["a"]; }),
      says("are both token"));
  EXPECT_THAT(refusal([](auto& json) { json = {1, 2}; }), says("not a tokenizer"));
}

TEST(Tokenizer, SaysWhatIsNotThere) {
  const Scratch folder;
  EXPECT_THAT(outcome_of<Error>([&] { load_tokenizer(folder.path()); }),
              HasSubstr("neither tokenizer.json nor"));
  put_bytes(folder / "tokenizer.json", "{\"model\": ");
  EXPECT_THAT(outcome_of<Error>([&] { load_tokenizer(folder.path()); }),
              HasSubstr("not valid JSON at byte"));
}

}  // namespace
}  // namespace trireme::format
