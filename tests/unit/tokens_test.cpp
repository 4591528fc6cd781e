#include "trireme/format/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <numeric>
#include <random>

#include "support/scratch.h"
#include "trireme/core/error.h"

namespace trireme::format {
namespace {

using test::bytes_of;
using test::outcome_of;
using test::put_bytes;
using test::Scratch;
using test::sentence_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint16_t> some_tokens(size_t count) {
  std::vector<uint16_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint16_t>(i * 40503 + 11);
  return tokens;
}

std::vector<int64_t> all_of(const TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.size()));
  file.read(0, file.size(), tokens.data());
  return tokens;
}

template <class... T>
std::string packed(T... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return bytes;
}

std::string refusal_of(const std::string& path) {
  return outcome_of<Error>([&] { TokenFile file(path); });
}

/// A Megatron index with these sequences: {length, place}.
std::string megatron_index(uint8_t dtype, const std::vector<std::pair<int32_t, int64_t>>& sequences,
                           const std::vector<int64_t>& documents) {
  std::string text("MMIDIDX\0\0", 9);
  text += packed(uint64_t{1}, dtype, uint64_t{sequences.size()}, uint64_t{documents.size()});
  for (const auto& [length, place] : sequences) text += packed(length);
  for (const auto& [length, place] : sequences) text += packed(place);
  for (const int64_t each : documents) text += packed(each);
  return text;
}

std::string llm_c(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  return packed(magic, version, count) + std::string(1024 - 12, '\0') + tokens;
}

TEST(Tokens, EveryKindGivesBackWhatWasWritten) {
  const Scratch scratch;
  const auto tokens = some_tokens(100'000);
  const std::vector<int64_t> wanted(tokens.begin(), tokens.end());
  for (const TokenKind kind : {TokenKind::Raw, TokenKind::LlmC, TokenKind::Megatron}) {
    const std::string path = scratch / std::string(to_string(kind)) + ".bin";
    write_tokens(path, kind, tokens);
    const TokenFile file(path);
    EXPECT_EQ(file.kind(), kind);
    EXPECT_EQ(file.path(), path);
    EXPECT_EQ(all_of(file), wanted);
    EXPECT_EQ(file.largest(), *std::ranges::max_element(wanted));
    std::vector<int64_t> some(3);
    file.read(99'997, 3, some.data());
    EXPECT_THAT(some, ElementsAre(wanted[99'997], wanted[99'998], wanted[99'999]));
    file.read(100'000, 0, some.data());
    EXPECT_THROW(file.read(99'998, 3, some.data()), MisuseError);
    EXPECT_THROW(file.read(-1, 1, some.data()), MisuseError);
  }
}

TEST(Tokens, MegatronIsFoundByAnyOfItsNames) {
  const Scratch scratch;
  write_tokens(scratch / "corpus", TokenKind::Megatron, some_tokens(10));
  for (const char* name : {"corpus", "corpus.bin", "corpus.idx"}) {
    const TokenFile file(scratch / name);
    EXPECT_EQ(file.kind(), TokenKind::Megatron);
    EXPECT_EQ(file.size(), 10);
    EXPECT_EQ(file.path(), scratch / "corpus.bin");
  }
}

TEST(Tokens, MegatronSequencesComeInTheOrderOfTheIndex) {
  const Scratch scratch;
  put_bytes(scratch / "m.bin",
            packed(int32_t{10}, int32_t{11}, int32_t{12}, int32_t{70'000}, int32_t{14}));
  put_bytes(scratch / "m.idx",
            megatron_index(4, {{2, 12}, {0, 0}, {1, 20 - 20}, {2, 4}, {1, 0}}, {0, 2, 5}));
  const TokenFile file(scratch / "m");
  EXPECT_THAT(all_of(file), ElementsAre(70'000, 14, 10, 11, 12, 10));
  EXPECT_EQ(file.largest(), 70'000);
  const auto all = all_of(file);
  for (int64_t begin = 0; begin <= 6; ++begin)
    for (int64_t end = begin; end <= 6; ++end) {
      std::vector<int64_t> part(static_cast<size_t>(end - begin));
      file.read(begin, end - begin, part.data());
      EXPECT_EQ(part, std::vector<int64_t>(all.begin() + begin, all.begin() + end));
    }
}

TEST(Tokens, WideOnesOfLlmCAreRead) {
  const Scratch scratch;
  put_bytes(scratch / "x.bin", llm_c(20240801, 7, 2, packed(uint32_t{128'000}, uint32_t{5})));
  EXPECT_THAT(all_of(TokenFile(scratch / "x.bin")), ElementsAre(128'000, 5));
}

TEST(Tokens, BadRawAndLlmCFilesAreRefused) {
  const Scratch scratch;
  const std::string path = scratch / "x.bin", two = packed(uint16_t{1}, uint16_t{2});
  EXPECT_THAT(refusal_of(path), HasSubstr("No such file"));
  EXPECT_THAT(refusal_of(scratch.path()), HasSubstr("not a file"));
  const auto says = [&](const std::string& bytes) {
    put_bytes(path, bytes);
    return refusal_of(path);
  };
  EXPECT_THAT(says(""), HasSubstr("is empty"));
  EXPECT_THAT(says("abc"), HasSubstr("3 bytes: raw tokens are 2 bytes each"));
  EXPECT_EQ(says(two), "nothing was thrown");
  EXPECT_EQ(says(llm_c(20240520, 1, 2, two)), "nothing was thrown");
  EXPECT_THAT(says(packed(int32_t{20240520})), HasSubstr("less than the header"));
  EXPECT_THAT(says(llm_c(20240520, 2, 2, two)), HasSubstr("version 2"));
  EXPECT_THAT(says(llm_c(20240520, 1, 0, "")), HasSubstr("has 0 tokens"));
  EXPECT_THAT(says(llm_c(20240520, 1, -5, two)), HasSubstr("has -5 tokens"));
  EXPECT_THAT(says(llm_c(20240520, 1, INT32_MAX, two)), HasSubstr("cut off"));
  EXPECT_THAT(says(llm_c(20240520, 1, 1, two)), HasSubstr("1 tokens, which takes 1026 bytes"));
}

TEST(Tokens, BadMegatronIndexesAreRefused) {
  const Scratch scratch;
  const std::string idx = scratch / "m.idx", bin = scratch / "m.bin";
  const auto says = [&](const std::string& bytes) {
    put_bytes(idx, bytes);
    return refusal_of(scratch / "m");
  };
  const std::string good = megatron_index(8, {{2, 0}, {1, 4}}, {0, 2});
  put_bytes(idx, good);
  EXPECT_THAT(refusal_of(idx), HasSubstr("m.bin: No such file"));
  put_bytes(bin, packed(uint16_t{1}, uint16_t{2}, uint16_t{3}));
  EXPECT_EQ(says(good), "nothing was thrown");
  EXPECT_EQ(says(good + std::string(2, '\0')), "nothing was thrown");  // modes
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_THAT(says(good.substr(0, length)), HasSubstr("m.idx")) << length;
  EXPECT_THAT(says("x" + good), HasSubstr("not a Megatron index"));
  EXPECT_THAT(says("TNTIDX" + std::string(50, '\0')), HasSubstr("fairseq"));
  EXPECT_THAT(says(megatron_index(6, {{1, 0}}, {0, 1})), HasSubstr("float64"));
  EXPECT_THAT(says(megatron_index(5, {{1, 0}}, {0, 1})), HasSubstr("int64"));
  EXPECT_THAT(says(megatron_index(77, {{1, 0}}, {0, 1})), HasSubstr("unknown type 77"));
  EXPECT_THAT(says(megatron_index(8, {{4, 0}}, {0, 1})), HasSubstr("sequence 0 has 4 tokens"));
  EXPECT_THAT(says(megatron_index(8, {{1, 6}}, {0, 1})), HasSubstr("at byte 6"));
  EXPECT_THAT(says(megatron_index(8, {{1, -2}}, {0, 1})), HasSubstr("at byte -2"));
  EXPECT_THAT(says(megatron_index(8, {{1, INT64_MAX}}, {0, 1})), HasSubstr("at byte"));
  EXPECT_THAT(says(megatron_index(8, {{-1, 0}}, {0, 1})), HasSubstr("has -1 tokens"));
  EXPECT_THAT(says(megatron_index(8, {{2, 0}}, {0, 3})), HasSubstr("document 1"));
  EXPECT_THAT(says(megatron_index(8, {{0, 0}}, {0, 1})), HasSubstr("no tokens"));
  std::string many = good;
  for (size_t i = 18; i < 34; ++i) many[i] = '\xff';
  EXPECT_THAT(says(many), HasSubstr("18446744073709551615 sequences"));
  std::string later = good;
  later[9] = 2;
  EXPECT_THAT(says(later), HasSubstr("version 2"));
}

TEST(Tokens, NoChangedByteOfAnIndexCrashes) {
  const Scratch scratch;
  write_tokens(scratch / "m", TokenKind::Megatron, some_tokens(50));
  const std::string good = bytes_of(scratch / "m.idx");
  for (size_t at = 0; at < good.size(); ++at)
    for (const int change : {1, 8, 128, 255}) {
      std::string changed = good;
      changed[at] = static_cast<char>(changed[at] ^ change);
      put_bytes(scratch / "m.idx", changed);
      try {
        all_of(TokenFile(scratch / "m"));
      } catch (const Error&) {
      }
    }
}

TEST(Tokens, ANegativeTokenIsNamedByItsPlace) {
  const Scratch scratch;
  put_bytes(scratch / "m.bin", packed(int32_t{1}, int32_t{-7}));
  put_bytes(scratch / "m.idx", megatron_index(4, {{2, 0}}, {0, 1}));
  const TokenFile file(scratch / "m");
  EXPECT_THAT(sentence_of<Error>([&] { all_of(file); }), HasSubstr("token 1 is -7"));
  EXPECT_THROW(file.largest(), Error);
}

TEST(Tokens, AFullDiskIsAnError) {
  EXPECT_THAT(
      sentence_of<Error>([] { write_tokens("/dev/full", TokenKind::Raw, some_tokens(1000)); }),
      HasSubstr("No space left"));
}

TEST(Tokens, AreKnownByWhatTheyAreAndNotByWhereTheyLie) {
  const Scratch scratch;
  for (const size_t count : {1000ul, 700'000ul}) {  // hashed whole, and by blocks
    auto tokens = some_tokens(count);
    const auto identity = [&](const std::string& name, TokenKind kind) {
      write_tokens(scratch / name, kind, tokens);
      return TokenFile(scratch / name).identity();
    };
    const std::string known = identity("a", TokenKind::Raw);
    EXPECT_THAT(known, HasSubstr(std::to_string(count) + " tokens, hash "));
    EXPECT_EQ(identity("b", TokenKind::LlmC), known);
    EXPECT_EQ(identity("c", TokenKind::Megatron), known);
    tokens.back() ^= 1;
    EXPECT_NE(identity("d", TokenKind::Raw), known) << "the last one is looked at";
    tokens.back() ^= 1;
    tokens.front() ^= 1;
    EXPECT_NE(identity("e", TokenKind::Raw), known);
    tokens.front() ^= 1;
    tokens.push_back(7);
    EXPECT_NE(identity("f", TokenKind::Raw), known) << "appended";
  }
}

TEST(Tokens, AFileThatCouldNotBeWrittenLeavesWhatWasThere) {
  const Scratch scratch;
  const std::string path = scratch / "tokens.bin";
  write_tokens(path, TokenKind::Raw, some_tokens(10));
  // From now on a file ends at 1000 bytes, as on a disk that is full.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1000, before.rlim_max};
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  for (const TokenKind kind : {TokenKind::Raw, TokenKind::Megatron})
    EXPECT_THROW(write_tokens(path, kind, some_tokens(1000)), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(TokenFile(path).size(), 10);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1)
      << "nothing else is left";
}

}  // namespace
}  // namespace trireme::format
