// As SQLite is tested: the n-th operation on the disk fails, or power goes at it, for n = 1, 2, 3
// ... until a save gets through. After each the newest checkpoint that loads is whole and right.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <fstream>

#include "support/faulty_disk.h"
#include "support/saved_states.h"
#include "support/scratch.h"
#include "trireme/format/folder.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

const Degrees kTwo{.shard = 2}, kOne{};
constexpr unsigned kPatience_s = 60;

/// How a process that saves has ended.
constexpr int kSaved = 0, kSaidSo = 1, kWrong = 99;

/// Runs the body in a process of its own, which may lose its power.
int in_process(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kPatience_s);
    ::setenv("TRIREME_LOG", "off", 1);
    const int code = body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? kWrong : code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// What a run that starts now finds; its values have been compared.
int64_t newest(const std::string& folder) {
  format::remove_leftovers(folder);
  return load_state(folder, kOne);
}

/// A folder with a good step 1.
class Crash : public testing::TestWithParam<const char*> {
 protected:
  Crash() {
    EXPECT_EQ(in_process([&] { return save_state(scratch_ / "good", kTwo, 1) ? 1 : 0; }), 0);
  }
  void start_over() {
    const std::string command = "rm -rf " + folder_ + " && cp -r " + scratch_ / "good " + folder_;
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  const Scratch scratch_;
  const std::string folder_ = scratch_ / "run";
};

class PowerLoss : public Crash {};

TEST_P(PowerLoss, LeavesTheNewestCheckpointWholeAtEveryOperation) {
  int lost = 0, before = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE(testing::Message() << "operation " << n);
    start_over();
    const int code = in_process([&] {
      faulty_disk_arm(GetParam(), n, folder_.c_str(), nullptr);
      if (save_state(folder_, kTwo, 2)) return kSaidSo;
      faulty_disk_disarm();
      return kSaved;
    });
    ASSERT_TRUE(code == kPowerLost || code == kSaved) << code;
    ASSERT_EQ(in_process([&] {
                const int64_t step = newest(folder_);
                EXPECT_TRUE(step == 2 || (step == 1 && code == kPowerLost)) << step;
                return kSaved;
              }),
              kSaved);
    const bool old = format::list(folder_) == std::vector<int64_t>{1};
    before += old ? 1 : 0;
    EXPECT_TRUE(!old || before == n) << "once the new one is there it stays";
    if (code == kSaved) break;
    ++lost;
  }
  EXPECT_GT(lost, 25) << "too few operations for a save: does the shim see them?";
  EXPECT_GT(before, 20);
  EXPECT_LT(before, lost);
}

/// The only checkpoint there is, saved once more: at no instant there is none.
TEST_P(PowerLoss, WhileAStepTakesTheOldOnesPlaceLeavesOneOfThem) {
  int code = kPowerLost;
  for (int n = 1; code == kPowerLost; ++n) {
    SCOPED_TRACE(testing::Message() << "operation " << n);
    start_over();
    code = in_process([&] {
      faulty_disk_arm(GetParam(), n, folder_.c_str(), nullptr);
      return save_state(folder_, kTwo, 1) ? kSaidSo : kSaved;
    });
    ASSERT_TRUE(code == kPowerLost || code == kSaved) << code;
    ASSERT_EQ(in_process([&] {
                EXPECT_EQ(newest(folder_), 1);
                return kSaved;
              }),
              kSaved);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PowerLoss, testing::Values("lost", "removed", "torn"),
                         [](const auto& one) { return std::string(one.param); });

class DiskFailure : public Crash {};

TEST_P(DiskFailure, CostsAtMostTheCheckpointThatIsBeingWritten) {
  int failures = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE(testing::Message() << "operation " << n);
    start_over();
    const int code = in_process([&] {
      faulty_disk_arm(GetParam(), n, folder_.c_str(), nullptr);
      const auto problem = save_state(folder_, kTwo, 2);
      const bool fired = faulty_disk_count() >= n;
      faulty_disk_disarm();
      const int64_t step = newest(folder_);
      EXPECT_TRUE(step == 2 || (step == 1 && problem)) << step;
      EXPECT_EQ(save_state(folder_, kTwo, 3), std::nullopt) << "the next one is saved";
      EXPECT_EQ(newest(folder_), 3);
      EXPECT_THAT(format::list(folder_), testing::ElementsAre(3));
      return fired ? kSaidSo : kSaved;
    });
    ASSERT_TRUE(code == kSaidSo || code == kSaved) << code;
    if (code == kSaved) break;
    ++failures;
  }
  EXPECT_GT(failures, 25);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DiskFailure, testing::Values("eio", "enospc"),
                         [](const auto& one) { return std::string(one.param); });

using CrashFolder = Crash;

TEST_F(CrashFolder, ThatIsReadOnlyIsSaidAndCostsNothing) {
  start_over();
  EXPECT_EQ(in_process([&] {
              faulty_disk_arm("erofs", 1, folder_.c_str(), nullptr);
              EXPECT_THAT(save_state(folder_, kTwo, 2).value_or(""),
                          HasSubstr("Read-only file system"));
              EXPECT_EQ(load_state(folder_, kOne), 1) << "loading changes nothing";
              return kSaved;
            }),
            kSaved);
}

TEST_F(CrashFolder, ThatIsFullIsSaidByFileAndReason) {
  start_over();
  EXPECT_EQ(in_process([&] {
              faulty_disk_arm("enospc", 3, folder_.c_str(), nullptr);
              EXPECT_THAT(save_state(folder_, kTwo, 2).value_or(""),
                          testing::AllOf(HasSubstr(".safetensors"), HasSubstr("No space left")));
              return kSaved;
            }),
            kSaved);
}

/// Nothing goes before its successor is on the disk: the order of operations says so.
TEST_F(CrashFolder, LosesNothingBeforeItsSuccessorIsThere) {
  start_over();
  const std::string log = scratch_ / "log";
  EXPECT_EQ(in_process([&] {
              faulty_disk_arm("none", 0, folder_.c_str(), log.c_str());
              EXPECT_EQ(save_state(folder_, kTwo, 2), std::nullopt);
              return kSaved;
            }),
            kSaved);
  const std::string old = folder_ + "/step-00000001", next = folder_ + "/step-00000002";
  std::ifstream lines(log);
  std::vector<std::string> order;
  int synced_files = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("fsync " + next + ".tmp/")) ++synced_files;
    if (line == "fsync " + next + ".tmp") order.push_back("fsync its folder");
    if (line == "rename " + next + ".tmp " + next) order.push_back("rename");
    if (line == "fsync " + folder_) order.push_back("fsync");
    if (line.starts_with("rename " + old)) order.push_back("old steps aside");
    if (line.starts_with("unlink " + old) && order.back() != "old goes")
      order.push_back("old goes");
  }
  EXPECT_EQ(synced_files, 4) << "two parts, a note, the index";
  EXPECT_THAT(order, testing::ElementsAre("fsync its folder", "rename", "fsync", "old steps aside",
                                          "fsync", "old goes"));
}

TEST(SlowDisk, AnFsyncThatOutlastsThePatienceOfOthersLosesNothing) {
  const Scratch scratch;
  const std::string folder = scratch / "run";
  ASSERT_EQ(::mkdir(folder.c_str(), 0755), 0);
  EXPECT_EQ(in_process([&] {
              faulty_disk_arm("slow", 5000, folder.c_str(), nullptr);
              run_world(kThreads, 2, [&](const comm::Communicator& world) {
                const Mesh mesh(world, kTwo);
                checkpoint::Saver saver(folder, mesh, 1,
                                        {.patience = std::chrono::milliseconds(2000)});
                saver.save(1, state_of(mesh, 1));
                EXPECT_EQ(saver.wait(), std::nullopt);
                world.barrier();
              });
              return kSaved;
            }),
            kSaved);
  EXPECT_EQ(newest(folder), 1);
  EXPECT_NE(::access((folder + "/step-00000001/part-00001.alive").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace trireme::test
