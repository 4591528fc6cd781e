#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/index.h"

namespace trireme::format {
namespace {

using test::outcome_of;
using test::sentence_of;
using ::testing::HasSubstr;

/// 'w' [4, 6] in two files: the left half as a box, the right half as two ranges of one.
Index example() {
  Index index;
  index.step = 500;
  index.files["a.safetensors"] = {100, kBlockBytes, {std::string(32, 'a')}};
  index.files["b.safetensors"] = {
      kBlockBytes + 1, kBlockBytes, {std::string(32, 'b'), std::string(32, 'c')}};
  index.tensors["w"] = {"F32",
                        {4, 6},
                        {{"a.safetensors", "w", {0, 0}, {4, 3}, 0, 12},
                         {"b.safetensors", "w.0", {0, 3}, {4, 3}, 0, 5},
                         {"b.safetensors", "w.1", {0, 3}, {4, 3}, 5, 7}}};
  index.extra = {{"cursor", 12}, {"rate", 0.1}, {"config", "[run]\nseed = 1\n"}};
  return index;
}

std::string refusal(const core::Json& json) {
  return sentence_of<CheckpointError>([&] { index_of(json, "index.json"); });
}

TEST(Index, GivesBackWhatWasWritten) {
  EXPECT_EQ(from_text(to_text(example()), "index.json"), example());
  EXPECT_EQ(index_of(json_of(example()), "index.json"), example());
}

TEST(Index, ANewerVersionIsNoDamage) {
  core::Json json = json_of(example());
  json["version"] = 2;
  EXPECT_THAT(sentence_of<ConfigError>([&] { from_text(json.dump(), "index.json"); }),
              HasSubstr("index.json has version 2, but this program reads version 1: a newer "
                        "Trireme wrote it"));
  json["version"] = 0;
  EXPECT_THAT(refusal(json), HasSubstr("has version 0, which never existed"));
}

TEST(Index, RefusesWhatCannotBeByName) {
  const auto changed = [](const char* pointer, const core::Json& value) {
    core::Json json = json_of(example());
    json[core::Json::json_pointer(pointer)] = value;
    return refusal(json);
  };
  EXPECT_THAT(changed("/step", -1), HasSubstr("'step'"));
  EXPECT_THAT(changed("/tensors", core::Json::array()), HasSubstr("'tensors'"));
  EXPECT_THAT(changed("/tensors/w/dtype", "F8"), HasSubstr("tensor 'w' has dtype F8"));
  EXPECT_THAT(changed("/tensors/w/shape", {4, 5}), HasSubstr("piece 1 is [4, 3] at [0, 3]"));
  EXPECT_THAT(changed("/tensors/w/shape", {int64_t{1} << 40, int64_t{1} << 40}),
              HasSubstr("invalid shape"));
  EXPECT_THAT(changed("/tensors/w/pieces/0/file", "c"), HasSubstr("lies in 'c'"));
  EXPECT_THAT(changed("/tensors/w/pieces/0/offset", {0}), HasSubstr("not inside"));
  EXPECT_THAT(changed("/tensors/w/pieces/0/offset", {INT64_MAX, 0}), HasSubstr("not inside"));
  EXPECT_THAT(changed("/tensors/w/pieces/0/count", 13), HasSubstr("a box of 12"));
  EXPECT_THAT(changed("/tensors/w/pieces/0/begin", INT64_MAX), HasSubstr("a box of 12"));
  EXPECT_THAT(changed("/files/a.safetensors/bytes", 10), HasSubstr("more elements than its file"));
  EXPECT_THAT(changed("/files/a.safetensors/bytes", 5 * kBlockBytes), HasSubstr("1 checksums"));
  EXPECT_THAT(changed("/files/a.safetensors/block_bytes", 1), HasSubstr("blocks of 1 bytes"));
  EXPECT_THAT(changed("/files/a.safetensors/checksums/0", "x"), HasSubstr("checksum"));
  for (const char* key : {"version", "step", "tensors", "files", "extra"}) {
    core::Json json = json_of(example());
    json.erase(key);
    EXPECT_THAT(refusal(json), HasSubstr(key));
  }
}

TEST(Index, FileNamesCannotLeadOutOfTheFolder) {
  for (const char* name : {"../a", "a/b", "..", ".", "", "a\\b"}) {
    Index index = example();
    index.files[name] = index.files["a.safetensors"];
    EXPECT_THAT(refusal(json_of(index)), HasSubstr("not a plain file name")) << name;
  }
}

TEST(Index, HostileTextIsRefused) {
  const auto refused = [](const std::string& text) {
    return sentence_of<CheckpointError>([&] { from_text(text, "index.json"); });
  };
  EXPECT_THAT(refused(""), HasSubstr("JSON"));
  EXPECT_THAT(refused("3"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refused(std::string(1'000'000, '[')), HasSubstr("nested"));
  const std::string text = to_text(example());
  for (size_t length = 0; length + 2 < text.size(); ++length)
    ASSERT_THAT(refused(text.substr(0, length)), HasSubstr("index.json"));
}

std::string incomplete(const std::vector<StoredPiece>& pieces,
                       std::vector<int64_t> shape = {4, 6}) {
  Index index = example();
  index.tensors["w"] = {"F32", std::move(shape), pieces};
  return outcome_of<CheckpointError>([&] { check_complete(index); });
}

constexpr const char* kFine = test::kNothingThrown;

TEST(IndexComplete, AcceptsEveryExactCover) {
  EXPECT_EQ(incomplete(example().tensors["w"].pieces), kFine);
  EXPECT_EQ(incomplete({{"f", "k", {0, 0}, {4, 6}, 0, 24}}), kFine);
  EXPECT_EQ(incomplete({{"f", "k", {0, 0}, {4, 6}, 10, 14}, {"f", "k", {0, 0}, {4, 6}, 0, 10}}),
            kFine);
  // A range of the whole beside a box that holds the rest of it: no mesh does that, but it covers.
  EXPECT_EQ(incomplete({{"f", "k", {0, 0}, {4, 6}, 0, 12}, {"f", "k", {2, 0}, {2, 6}, 0, 12}}),
            kFine);
  EXPECT_EQ(incomplete({}, {0, 6}), kFine);
  EXPECT_EQ(incomplete({{"f", "k", {}, {}, 0, 1}}, {}), kFine);
}

TEST(IndexComplete, NamesTheFirstElementThatIsMissingOrThereTwice) {
  auto pieces = example().tensors["w"].pieces;
  pieces[2].count = 6;
  EXPECT_THAT(incomplete(pieces), HasSubstr("element 23 of tensor 'w' [4, 6] is stored nowhere"));
  pieces = example().tensors["w"].pieces;
  pieces[2] = pieces[1];
  EXPECT_THAT(incomplete(pieces), HasSubstr("element 3 of tensor 'w' [4, 6] is stored more"));
  pieces = example().tensors["w"].pieces;
  pieces[0].shape = {4, 4};
  pieces[0].count = 16;
  EXPECT_THAT(incomplete(pieces), HasSubstr("element 3 of tensor 'w' [4, 6] is stored more"));
  // Two boxes that have the whole's volume, and meet.
  EXPECT_THAT(incomplete({{"f", "k", {0, 0}, {4, 3}, 0, 12}, {"f", "k", {0, 2}, {4, 3}, 0, 12}}),
              HasSubstr("element 2 of tensor 'w' [4, 6] is stored more"));
  EXPECT_THAT(incomplete({}), HasSubstr("element 0 of tensor 'w' [4, 6] is stored nowhere"));
  EXPECT_THAT(incomplete({}, {}), HasSubstr("stored nowhere"));
}

TEST(IndexComplete, TakesNoTimeOverABigTensor) {
  const int64_t rows = int64_t{1} << 40;  // its runs would not fit any memory
  EXPECT_EQ(
      incomplete({{"f", "k", {0, 0}, {rows, 1}, 0, rows}, {"f", "k", {0, 1}, {rows, 1}, 0, rows}},
                 {rows, 2}),
      kFine);
  EXPECT_THAT(incomplete({{"f", "k", {0, 0}, {rows, 1}, 0, rows}}, {rows, 2}),
              HasSubstr("tensor 'w'"));
}

}  // namespace
}  // namespace trireme::format
