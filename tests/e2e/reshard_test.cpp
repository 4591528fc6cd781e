// `trireme ckpt reshard`: the same values in other files, whole or absent, in little memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/checkpoints.h"
#include "support/command.h"
#include "support/faulty_disk.h"
#include "support/sanitized.h"
#include "support/scratch.h"
#include "support/terminal.h"
#include "trireme/format/load.h"

namespace trireme {
namespace {

using format::BoxRange;
using test::CommandResult;
using test::Scratch;
using ::testing::HasSubstr;

CommandResult run_ckpt(std::vector<std::string> args, test::CommandOptions options = {}) {
  args.insert(args.begin(), {TRIREME_BINARY_DIR "/bin/trireme", "ckpt"});
  return test::run_command(std::move(args), std::move(options));
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Step 7 with tensors cut in every way, in three files.
struct Reshard : testing::Test {
  const Scratch scratch;
  const std::vector<int64_t> shape = {600, 700};  // more than a block
  const std::string w = test::random_bytes(600 * 700 * 4), h = test::random_bytes(2 * 37, 2);
  const std::string from =
      test::save(scratch / "run/checkpoints", 7,
                 {{"w",
                   {"F32",
                    shape,
                    w,
                    {{{0, 0}, {600, 300}, 0, 180'000},
                     {{0, 300}, {600, 400}, 0, 1000},
                     {{0, 300}, {600, 400}, 1000, 239'000}}}},
                  {"h", {"BF16", {37}, h, {{{0}, {37}, 0, 16}, {{0}, {37}, 16, 21}}}},
                  {"n", {"I64", {}, std::string(8, '\3'), {test::whole_region({})}}},
                  {"none", {"F64", {0, 3}, "", {}}}},
                 3, {{"cursor", 12}});
  const std::string out = scratch / "deep/er/out";

  CommandResult must(std::vector<std::string> args) {
    auto result = run_ckpt(std::move(args));
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    return result;
  }
};

TEST_F(Reshard, ToOneRankGivesWholeTensorsUnderTheirOwnNames) {
  EXPECT_THAT(must({"reshard", scratch / "run", out}).out,
              HasSubstr(out + ": step 7, 4 tensors, "));
  EXPECT_EQ(must({"diff", from, out}).out, "equal: 4 tensors, bit for bit\n");
  must({"verify", out});
  format::SafetensorsReader file(out + "/part-00000.safetensors");
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.find("w")->shape, shape);
  EXPECT_EQ(file.find("none")->shape, (std::vector<int64_t>{0, 3}));
  std::string bytes(w.size(), '\0');
  file.read("w", 0, static_cast<int64_t>(w.size()), bytes.data());
  EXPECT_TRUE(bytes == w);
  EXPECT_EQ(format::read_index(out).extra, format::read_index(from).extra);
  EXPECT_FALSE(is_there(out + ".tmp"));
}

TEST_F(Reshard, ToManyRanksCutsAsShardDoesAndGoesBack) {
  must({"reshard", from, out + "/", "--ranks", "4"});
  EXPECT_EQ(must({"diff", from, out}).out, "equal: 4 tensors, bit for bit\n");
  const format::Index index = format::read_index(out);
  EXPECT_EQ(index.files.size(), 4u);
  const auto& pieces = index.tensors.at("w").pieces;
  ASSERT_EQ(pieces.size(), 4u);
  for (const auto& piece : pieces) {
    EXPECT_EQ(piece.shape, shape);
    EXPECT_EQ(piece.begin % 16, 0);
    EXPECT_NEAR(static_cast<double>(piece.count), 105'000, 16);
  }
  EXPECT_EQ(index.tensors.at("n").pieces.size(), 1u);
  must({"reshard", out, scratch / "back"});
  EXPECT_EQ(must({"diff", from, scratch / "back"}).out, "equal: 4 tensors, bit for bit\n");
  must({"reshard", from, scratch / "straight"});
  EXPECT_TRUE(test::bytes_of(scratch / "back/part-00000.safetensors") ==
              test::bytes_of(scratch / "straight/part-00000.safetensors"));
}

TEST_F(Reshard, RefusesWithOneSentence) {
  const auto says = [](std::vector<std::string> args, int code) {
    const auto result = run_ckpt(std::move(args));
    EXPECT_EQ(result.code, code) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(says({"reshard", from, scratch / "run"}, 2), HasSubstr("is there already"));
  EXPECT_THAT(says({"reshard", from, out, "--ranks", "0"}, 2),
              HasSubstr("--ranks 0: must be 1 to 99999"));
  EXPECT_THAT(says({"reshard", from, out, "--ranks", "x"}, 2),
              HasSubstr("--ranks x: write a whole number"));
  EXPECT_THAT(says({"reshard", from}, 2), HasSubstr("two paths"));
  EXPECT_THAT(says({"ls", from, "--ranks=2"}, 2), HasSubstr("belongs to reshard"));
  EXPECT_THAT(says({"reshard", scratch / "nothing", out}, 2), HasSubstr("there is no '"));
  EXPECT_THAT(says({"reshard", from, ""}, 2), HasSubstr("OUT is empty"));
  EXPECT_THAT(says({"reshard", from, scratch / "step-00000999"}, 2),
              HasSubstr("is named as step 999, but holds step"));
  EXPECT_THAT(says({"reshard", from, "/proc/nothing/out"}, 1), HasSubstr("/proc/nothing"));
  ASSERT_EQ(::mkdir((scratch / "kept.tmp").c_str(), 0755), 0);
  EXPECT_THAT(says({"reshard", from, scratch / "kept"}, 2), HasSubstr("kept.tmp' is there"));
  std::string bytes = test::bytes_of(from + "/pieces-0.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::put_bytes(from + "/pieces-0.safetensors", bytes);
  EXPECT_THAT(
      says({"reshard", from, out}, 1),
      testing::AllOf(HasSubstr("pieces-0.safetensors is damaged"), HasSubstr("found in reading")));
  EXPECT_FALSE(is_there(out) || is_there(out + ".tmp")) << "nothing is left";
}

/// The disk fails, or power goes, at each operation in turn.
TEST_F(Reshard, IsWholeOrAbsentWhateverFails) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer must be loaded before any other library";
  const std::string folder = scratch / "disk";
  for (const std::string how : {"eio", "enospc", "lost", "torn"}) {
    int n = 1;
    for (bool done = false; !done; ++n) {
      SCOPED_TRACE(how + " at operation " + std::to_string(n));
      ASSERT_EQ(::mkdir(folder.c_str(), 0755), 0);
      const auto result = run_ckpt(
          {"reshard", from, folder + "/out", "--ranks", "2"},
          {.environment = {{"LD_PRELOAD", TRIREME_BINARY_DIR "/lib/libfaulty_disk.so"},
                           {"FAULTY_DISK", how + " " + std::to_string(n) + " " + folder}}});
      const bool lost = result.code == test::kPowerLost;
      ASSERT_TRUE(result.code == 0 || result.code == 1 || lost) << result.code << result.err;
      if (is_there(folder + "/out")) must({"verify", folder + "/out"});
      EXPECT_TRUE(result.code != 0 || is_there(folder + "/out"));
      EXPECT_TRUE(lost || !is_there(folder + "/out.tmp"));
      done = result.code == 0;
      ASSERT_EQ(std::system(("rm -r " + folder).c_str()), 0);
    }
    EXPECT_GT(n, 10) << how;
  }
}

TEST_F(Reshard, TakesLittleMemoryForABigTensor) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer takes terabytes of addresses";
  const int64_t numel = int64_t{48} << 20;  // 192 MiB
  const std::string big = format::begin(scratch / "big", 1);
  format::SafetensorsWriter writer(big + "/a", {{.name = "t", .dtype = "F32", .shape = {numel}}},
                                   {{"step", "1"}});
  const std::string part = test::random_bytes(1 << 20);
  for (int64_t done = 0; done < 4 * numel; done += 1 << 20) writer.append(part.data(), 1 << 20);
  format::Index index;
  index.step = 1;
  index.files["a"] = writer.finish();
  index.tensors["t"] = {"F32", {numel}, {{"a", "t", {0}, {numel}, 0, numel}}};
  format::write_file(big + "/index.json", format::to_text(index));
  format::commit(scratch / "big", 1);
  const auto result = test::run_command(
      {"bash", "-c", "ulimit -v 120000 && exec \"$@\"", "bash", TRIREME_BINARY_DIR "/bin/trireme",
       "ckpt", "reshard", scratch / "big", out, "--ranks", "2"},
      {.deadline = std::chrono::seconds(120)});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("in 2 files"));
}

TEST_F(Reshard, SaysOnATerminalHowFarItIs) {
  test::Terminal terminal(
      {TRIREME_BINARY_DIR "/bin/trireme", "ckpt", "reshard", from, out, "--ranks", "99999"});
  ASSERT_TRUE(terminal.wait_for(" of 99999")) << terminal.bytes();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 130);
  EXPECT_THAT(terminal.bytes(),
              testing::ContainsRegex("\r\033\\[K[0-9.]+ [A-Za-z]+ of [0-9.]+ [A-Za-z]+, file "
                                     "[0-9]+ of 99999"));
  EXPECT_THAT(terminal.screen(), testing::Not(testing::Contains(HasSubstr("file "))))
      << "its last line is wiped away";
  EXPECT_FALSE(is_there(out) || is_there(out + ".tmp"));
}

TEST_F(Reshard, LeavesNothingBehindWhenItIsStopped) {
  for (const auto& [signal, code] : {std::pair("INT", 130), std::pair("HUP", 129)}) {
    const auto result = test::run_command(
        {"timeout", "--preserve-status", "-s", signal, "1", TRIREME_BINARY_DIR "/bin/trireme",
         "ckpt", "reshard", from, out, "--ranks", "99999"},
        {.deadline = std::chrono::seconds(60)});
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped; " + out + " was removed"));
    EXPECT_FALSE(is_there(out) || is_there(out + ".tmp"));
  }
}

}  // namespace
}  // namespace trireme
