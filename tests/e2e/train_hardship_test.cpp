// What happens around a run: a configuration that can be read once, a terminal that is closed, a
// disk that is full for a while, limits, files that change. Nothing is lost without a sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/training.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CommandResult run_through(std::vector<std::string> argv, std::string input = "") {
  return run_command(std::move(argv), {.input = std::move(input), .deadline = kPatience});
}

CommandResult run_shell(const std::string& line) {
  return run_through({"bash", "-c", line});
}

TEST(ReadOnce, AConfigurationThatComesThroughAPipe) {
  const Scratch folder;
  const std::string config = tiny_config(folder), tiny = "\nhidden = 32\n";
  const auto substituted =
      run_shell(kTrireme + " train <(cat " + config + ") run.steps=2 run.dir=" + folder / "a");
  EXPECT_EQ(substituted.code, 0) << substituted.err;
  EXPECT_THAT(bytes_of(folder / "a/config.toml"), HasSubstr(tiny));
  const auto piped = run_through({kTrireme, "train", "/dev/stdin", "run.steps=2", "mesh.tensor=2",
                                  "mesh.replica=1", "run.dir=" + folder / "b"},
                                 bytes_of(config));
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(bytes_of(folder / "b/config.toml"), HasSubstr(tiny));
  const auto checked = run_through({kTrireme, "train", "--check", "/dev/stdin"}, bytes_of(config));
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("mesh of 2 ranks"));
  const auto proved = run_shell(kTrireme + " verify <(cat " + config + ") --steps 1");
  EXPECT_EQ(proved.code, 0) << proved.err;
  EXPECT_THAT(proved.out, HasSubstr("replica 2"));
}

TEST(ReadOnce, UnderALauncherAPipeIsRefused) {
  const Scratch folder;
  const auto result = run_through({kTrireme, "run", "-n", "2", kTrireme, "train", "/dev/stdin"},
                                  bytes_of(tiny_config(folder)));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/dev/stdin is not a regular file"));
}

/// A run that has made some steps gets `signals`; what it answers.
CommandResult signalled(const Scratch& folder, const std::vector<int>& signals,
                        const std::string& before = "exec ") {
  std::string line = before;
  for (const std::string& word :
       train_arguments(tiny_config(folder), folder / "run", {"run.steps=100000", "log.every=1"}))
    line += word + " ";
  Command run({"bash", "-c", line}, {.deadline = kPatience});
  EXPECT_TRUE(run.wait_for("step 5/"));
  for (const int signal : signals) {
    run.signal(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return run.finish();
}

TEST(HungUp, SavesAndStopsHoweverOftenItIsSaid) {
  const Scratch folder;
  const auto result = signalled(folder, {SIGHUP, SIGHUP, SIGHUP});
  EXPECT_EQ(result.code, 128 + SIGHUP) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped at step"));
  EXPECT_EQ(run_through({kTrireme, "ckpt", "verify", folder / "run"}).code, 0);
}

TEST(HungUp, IsNothingUnderNohup) {
  const Scratch folder;
  const auto result = signalled(folder, {SIGHUP, SIGHUP, SIGTERM}, "trap '' HUP; exec ");
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
}

TEST(Verify, LeavesNothingInTmpHoweverItEnds) {
  const Scratch folder;
  const auto left = [&] {
    const fs::directory_iterator entries(folder / "tmp");
    return std::count_if(begin(entries), end(entries), [](const auto& entry) {
      return entry.path().filename().string().starts_with("trireme-verify-");
    });
  };
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGKILL}) {
    fs::create_directory(folder / "tmp");
    Command run({kTrireme, "verify", tiny_config(folder), "--steps", "100000"},
                {.environment = {{"TMPDIR", folder / "tmp"}}, .deadline = kPatience});
    ASSERT_TRUE(eventually([&] { return left() == 1; }, kPatience));
    run.signal(signal);
    EXPECT_EQ(run.finish().code, 128 + signal);
    EXPECT_TRUE(eventually([&] { return left() == 0; })) << "after signal " << signal;
  }
}

TEST(FullDisk, ForAWhileCostsNoLineOfTheMetrics) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may mount a small disk";
  const Scratch folder;
  const std::string disk = folder / "disk", dir = disk + "/run";
  fs::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "no tmpfs can be mounted here";
  {
    Command run(train_arguments(tiny_config(folder), dir,
                                {"run.steps=100000", "log.every=1", "checkpoint.every=0"}),
                {.deadline = kPatience});
    EXPECT_TRUE(run.wait_for("step 5/"));
    {
      std::ofstream full(disk + "/full");
      const std::string block(4096, 'x');
      while (full.write(block.data(), 4096).flush()) {
      }
    }
    EXPECT_TRUE(run.wait_for("its lines wait in memory")) << "a warning";
    fs::remove(disk + "/full");
    EXPECT_TRUE(run.wait_for("is written again; nothing is missing"));
    run.signal(SIGINT);
    const auto result = run.finish();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_GT(texts_of(dir, "loss").size(), 5u) << "which looks at every step";
    EXPECT_THAT(bytes_of(dir + "/log/rank-0.log"), HasSubstr("is written again"));
  }
  ::umount(disk.c_str());
}

TEST(FileLimit, CostsTheCheckpointAndNotTheRun) {
  const Scratch folder;
  std::string line = "ulimit -f 1000; exec ";
  for (const std::string& word :
       train_arguments(tiny_config(folder), folder / "run", {"mesh.replica=1", "model.hidden=96"}))
    line += word + " ";
  const auto result = run_shell(line);
  EXPECT_EQ(result.code, 1) << "its end is not on disk";
  EXPECT_THAT(result.err, AllOf(HasSubstr("step 4 is not saved"), HasSubstr("File too large"),
                                HasSubstr("training goes on")));
  const auto last = result.err.find("step 20 is not saved");
  ASSERT_NE(last, result.err.npos) << result.err;
  EXPECT_THAT(result.err.substr(last), Not(HasSubstr("training goes on"))) << "after the last one";
}

TEST(RemovedFolder, IsNoticed) {
  const Scratch folder;
  Command run(train_arguments(tiny_config(folder), folder / "run",
                              {"run.steps=100000", "log.every=1", "checkpoint.every=0"}),
              {.deadline = kPatience});
  ASSERT_TRUE(run.wait_for("step 5/"));
  fs::remove_all(folder / "run");
  EXPECT_TRUE(run.wait_for("metrics.jsonl was removed; the run goes on"));
}

TEST(Misnamed, ACheckpointIsPutAside) {
  const Scratch folder;
  const std::string config = tiny_config(folder), steps = folder / "run/checkpoints";
  ASSERT_EQ(run_through(train_arguments(config, folder / "run", {"run.steps=4"})).code, 0);
  fs::copy(steps + "/step-00000004", steps + "/step-00009999", fs::copy_options::recursive);
  const auto verified = run_through({kTrireme, "ckpt", "verify", steps});
  EXPECT_EQ(verified.code, 3);
  const std::string said = "step-00009999 is named as step 9999, but holds step 4";
  EXPECT_THAT(verified.out, HasSubstr(said));
  EXPECT_THAT(run_through({kTrireme, "ckpt", "ls", steps}).out, HasSubstr(said));
  const auto named = run_through(
      train_arguments(config, folder / "other", {"checkpoint.resume=" + steps + "/step-00009999"}));
  EXPECT_EQ(named.code, 2);
  EXPECT_THAT(named.err, HasSubstr(said));
  const auto again = run_through(train_arguments(config, folder / "run", {"run.steps=6"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr(said));
  EXPECT_THAT(again.out, HasSubstr("continues from " + steps + "/step-00000004"));
  EXPECT_TRUE(fs::exists(steps + "/step-00009999.damaged"));
}

TEST(CutOff, ADataFileInUseIsNamed) {
  const Scratch folder;
  const std::string file = folder / "data.bin";
  std::string bytes(200'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(i / 2 % 60);
  put_bytes(file, bytes);
  Command run(train_arguments(tiny_config(folder), folder / "run",
                              {"run.steps=100000", "log.every=1", "data.path=" + file}),
              {.deadline = kPatience});
  ASSERT_TRUE(run.wait_for("step 5/"));
  fs::resize_file(file, 100);
  const auto result = run.finish();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr(file + " was cut off while it was in use"));
}

}  // namespace
}  // namespace trireme::test
