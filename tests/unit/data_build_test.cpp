#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/text/build.h"
#include "trireme/format/text/documents.h"
#include "trireme/format/tokens.h"

namespace trireme::format {
namespace {

using test::bytes_of;
using test::outcome_of;
using test::put_bytes;
using test::Scratch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Documents of several sizes, some of which are not UTF-8, and lines of JSON.
void put_documents(const Scratch& folder) {
  ::mkdir((folder / "in").c_str(), 0777);
  ::mkdir((folder / "in/deep").c_str(), 0777);
  for (int i = 0; i < 9; ++i)
    put_bytes(folder / ("in/" + std::to_string(i) + ".txt"),
              test::random_bytes(700 * i + 3, static_cast<unsigned>(i)));
  put_bytes(folder / "in/deep/empty.txt", "");
  put_bytes(folder / "in/.hidden", "not this");
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += "{\"text\": \"line " + std::to_string(i) + " \\u00e9\"}\n" + (i % 7 ? "" : "\n");
  put_bytes(folder / "in/lines.jsonl", lines);
}

BuildJob job_in(const Scratch& folder, const std::string& out, int threads) {
  return {.inputs = {folder / "in"}, .out = folder / out, .threads = threads, .part_bytes = 1000};
}

TEST(DataBuild, WritesTheSameBytesWithAnyNumberOfThreads) {
  const Scratch folder;
  put_documents(folder);
  const auto bytes = load_tokenizer("bytes");
  const BuildResult one = build_tokens(*bytes, job_in(folder, "one", 1));
  build_tokens(*bytes, job_in(folder, "four", 4));
  EXPECT_EQ(one.documents, 9 + 400);
  EXPECT_EQ(bytes_of(folder / "one.bin"), bytes_of(folder / "four.bin"));
  EXPECT_EQ(bytes_of(folder / "one.idx"), bytes_of(folder / "four.idx"));
  EXPECT_NE(::access((folder / "one.building").c_str(), F_OK), 0) << "its parts are gone";
  const TokenFile file(folder / "one");
  EXPECT_EQ(file.kind(), TokenKind::Megatron);
  EXPECT_EQ(file.size(), one.tokens);
  // The first document, its end, and the second one.
  std::vector<int64_t> tokens(5);
  file.read(0, 5, tokens.data());
  const std::string first = bytes_of(folder / "in/0.txt"), second = bytes_of(folder / "in/1.txt");
  EXPECT_THAT(tokens,
              ElementsAre(static_cast<uint8_t>(first[0]), static_cast<uint8_t>(first[1]),
                          static_cast<uint8_t>(first[2]), 256, static_cast<uint8_t>(second[0])));
}

TEST(DataBuild, GoesOnAfterItWasStoppedAnywhere) {
  const Scratch folder;
  put_documents(folder);
  const auto bytes = load_tokenizer("bytes");
  build_tokens(*bytes, job_in(folder, "whole", 2));
  struct Stopped {};
  // Stopped after several numbers of parts, as by a kill: what was being written is left behind.
  // Parts that come together are told together, so that the build may be over before the last
  // numbers.
  int stops = 0;
  for (int stop = 1; stop < 20; stop += 3) {
    const std::string name = "stopped" + std::to_string(stop);
    int seen = 0;
    const auto until = [&](BuildProgress) {
      if (++seen == stop) {
        put_bytes(folder / (name + ".building/part-00015.tmp"), "half");
        throw Stopped();
      }
    };
    try {
      build_tokens(*bytes, job_in(folder, name, 1), until);
    } catch (const Stopped&) {
      ++stops;
      EXPECT_NE(::access((folder / (name + ".bin")).c_str(), F_OK), 0) << "nothing half-written";
    }
    build_tokens(*bytes, job_in(folder, name, 3));
    EXPECT_EQ(bytes_of(folder / (name + ".bin")), bytes_of(folder / "whole.bin"));
    EXPECT_EQ(bytes_of(folder / (name + ".idx")), bytes_of(folder / "whole.idx"));
  }
  EXPECT_GE(stops, 1);
}

TEST(DataBuild, RefusesToGoOnWithOtherFilesOrAnotherTokenizer) {
  const Scratch folder;
  put_documents(folder);
  const auto bytes = load_tokenizer("bytes");
  struct Stopped {};
  EXPECT_THROW(
      build_tokens(*bytes, job_in(folder, "out", 1), [](BuildProgress) { throw Stopped(); }),
      Stopped);
  put_bytes(folder / "in/0.txt", "changed");
  EXPECT_THAT(outcome_of<Error>([&] { build_tokens(*bytes, job_in(folder, "out", 1)); }),
              HasSubstr("was left by a build of other files"));
}

TEST(DataBuild, NamesFileAndLineOfWhatIsNoDocument) {
  const Scratch folder;
  ::mkdir((folder / "in").c_str(), 0777);
  put_bytes(folder / "in/a.jsonl", "{\"text\": \"fine\"}\n{\"body\": \"not\"}\n");
  const auto bytes = load_tokenizer("bytes");
  EXPECT_THAT(outcome_of<Error>([&] { build_tokens(*bytes, job_in(folder, "out", 2)); }),
              HasSubstr("a.jsonl: line 2: its object has no 'text'"));
  EXPECT_NE(::access((folder / "out.bin").c_str(), F_OK), 0);
}

TEST(Documents, OfRangesAreThoseOfTheWholeFile) {
  const Scratch folder;
  put_documents(folder);
  const std::string path = folder / "in/lines.jsonl";
  std::vector<std::string> whole, parts;
  for_each_document(path, [&](std::string_view text) { whole.emplace_back(text); });
  const auto bytes = static_cast<int64_t>(bytes_of(path).size());
  for (const int64_t each : {1, 7, 100, 5000}) {
    parts.clear();
    for (int64_t begin = 0; begin < bytes; begin += each)
      for_each_document(DocumentRange{path, begin, begin + each},
                        [&](std::string_view text) { parts.emplace_back(text); });
    EXPECT_EQ(parts, whole);
  }
}

}  // namespace
}  // namespace trireme::format
