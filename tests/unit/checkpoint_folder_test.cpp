#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"

namespace trireme::format {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::Scratch;
using test::sentence_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Saves a step with `text` in its index.
void save(const std::string& folder, int64_t step, const std::string& text = "{}") {
  const std::string place = begin(folder, step);
  write_file(place + "/data", "data");
  write_file(place + "/index.json", text);
  commit(folder, step);
}

TEST(Folder, NamesHaveEightDigitsOrMore) {
  EXPECT_EQ(step_name(500), "step-00000500");
  EXPECT_EQ(step_name(0), "step-00000000");
  EXPECT_EQ(step_name(1234567890123), "step-1234567890123");
}

TEST(Folder, ListsWholeStepsInOrderAndNothingElse) {
  const Scratch scratch;
  const std::string folder = scratch / "run/checkpoints";
  EXPECT_THAT(list(folder), ElementsAre());
  for (const int64_t step : {1'000'000'000, 500, 0}) save(folder, step);
  begin(folder, 7);
  for (const char* stranger : {"step-00000008", "step-9", "step-00000001x", "step-", "notes",
                               "step--0000001", "step-00000002.tmp", "step-99999999999999999999"})
    fs::create_directories(folder + "/" + stranger);
  for (const char* stranger : {"step-9", "step-00000001x", "step-00000002.tmp", "step--0000001"})
    write_file(folder + "/" + stranger + "/index.json", "{}");
  EXPECT_THAT(list(folder), ElementsAre(0, 500, 1'000'000'000));
}

TEST(Folder, AStepIsAbsentUntilItIsCommitted) {
  const Scratch scratch;
  const std::string place = begin(scratch.path(), 3);
  write_file(place + "/data", "x");
  EXPECT_THAT(sentence_of<CheckpointError>([&] { commit(scratch.path(), 3); }),
              HasSubstr("not finished"));
  write_file(place + "/index.json", "{}");
  EXPECT_THAT(list(scratch.path()), ElementsAre());
  EXPECT_EQ(commit(scratch.path(), 3), scratch / "step-00000003");
  EXPECT_THAT(list(scratch.path()), ElementsAre(3));
  EXPECT_FALSE(fs::exists(place));
}

TEST(Folder, BeginningAgainForgetsWhatWasLeft) {
  const Scratch scratch;
  write_file(begin(scratch.path(), 3) + "/old", "x");
  EXPECT_TRUE(fs::is_empty(begin(scratch.path(), 3)));
}

TEST(Folder, SavingAStepAgainReplacesIt) {
  const Scratch scratch;
  save(scratch.path(), 3, "first");
  save(scratch.path(), 3, "second");
  EXPECT_EQ(bytes_of(scratch / "step-00000003/index.json"), "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

TEST(Folder, PruningKeepsTheNewest) {
  const Scratch scratch;
  for (const int64_t step : {1, 2, 3, 4}) save(scratch.path(), step);
  EXPECT_THAT(prune(scratch.path(), 5), ElementsAre());
  EXPECT_THAT(prune(scratch.path(), 2), ElementsAre(1, 2));
  EXPECT_THAT(list(scratch.path()), ElementsAre(3, 4));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 2);
  EXPECT_THROW(prune(scratch.path(), 0), MisuseError);
}

TEST(Folder, LeftoversGoAndStrangersStay) {
  const Scratch scratch;
  save(scratch.path(), 1);
  write_file(begin(scratch.path(), 2) + "/data", "x");
  fs::create_directories(scratch / "step-00000001.tmp-pruned/deep/er");
  fs::create_directories(scratch / "mine.tmp");
  write_file(scratch / "precious", "x");
  fs::create_directory_symlink(scratch.path(), scratch / "step-00000002.tmp/link");
  remove_leftovers(scratch.path());
  EXPECT_THAT(list(scratch.path()), ElementsAre(1));
  EXPECT_TRUE(fs::exists(scratch / "precious")) << "a link was followed";
  EXPECT_TRUE(fs::exists(scratch / "mine.tmp"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 3);
}

TEST(Folder, AStepThatSteppedAsideForNothingComesBack) {
  const Scratch scratch;
  save(scratch.path(), 1, "one");
  fs::rename(scratch / "step-00000001", scratch / "step-00000001.tmp-old");
  write_file(begin(scratch.path(), 1) + "/data", "x");
  remove_leftovers(scratch.path());
  EXPECT_EQ(bytes_of(scratch / "step-00000001/index.json"), "one");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

TEST(Folder, NamesStepsThatWereNeverFinished) {
  const Scratch scratch;
  save(scratch.path(), 1);
  for (const char* name : {"step-00000003", "step-00000002", "step-00000004.tmp", "notes"})
    fs::create_directories(scratch / name);
  EXPECT_THAT(list_unfinished(scratch.path()),
              ElementsAre(scratch / "step-00000002", scratch / "step-00000003"));
  EXPECT_THAT(list_unfinished(scratch / "none"), ElementsAre());
}

TEST(Folder, PutsStepsAsideUnderNamesThatAreFree) {
  const Scratch scratch;
  for (const char* aside : {"step-00000001.damaged", "step-00000001.damaged-2"}) {
    save(scratch.path(), 1);
    EXPECT_EQ(put_aside(scratch.path(), 1), scratch / aside);
    EXPECT_THAT(list(scratch.path()), ElementsAre());
  }
}

TEST(Folder, BesideAnyNameRefusesWhatIsThere) {
  const Scratch scratch;
  const std::string path = scratch / "a/b";
  write_file(begin_beside(path) + "/data", "x");
  EXPECT_THAT(sentence_of<ConfigError>([&] { begin_beside(path); }), HasSubstr("b.tmp' is there"));
  EXPECT_FALSE(fs::exists(path));
  commit_beside(path);
  EXPECT_EQ(bytes_of(path + "/data"), "x");
  EXPECT_THAT(sentence_of<ConfigError>([&] { begin_beside(path); }), HasSubstr("b' is there"));
  begin_beside(scratch / "c");
  fs::create_directory(scratch / "c");
  EXPECT_THROW(commit_beside(scratch / "c"), CheckpointError) << "it came meanwhile";
  abandon_beside(scratch / "c");
  EXPECT_FALSE(fs::exists(scratch / "c.tmp"));
}

TEST(Folder, WhatCannotBeWrittenSaysWhy) {
  const Scratch scratch;
  EXPECT_THAT(sentence_of<CheckpointError>([] { write_file("/dev/full", "x"); }),
              HasSubstr("cannot write /dev/full: No space left on device"));
  write_file(scratch / "file", "x");
  EXPECT_THAT(sentence_of<CheckpointError>([&] { begin(scratch / "file/checkpoints", 1); }),
              HasSubstr("Not a directory"));
  EXPECT_THROW(commit(scratch.path(), 1), CheckpointError);
}

}  // namespace
}  // namespace trireme::format
