// A user's program in every role, started as a launcher does it.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/ps/joined_processes.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Of ps_join.
JoinedProcesses::Job counting(int servers, int batches,
                              JoinedProcesses::Environment environment = {
                                  {"TRIREME_PS_COPIES", "1"}}) {
  return {.program = {kBin + "ps_join", std::to_string(batches)},
          .servers = servers,
          .environment = std::move(environment)};
}

void expect_counts(const CommandResult& result, int batches) {
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("missed an own write")));
  std::string wanted;
  for (int key = 0; key < 7; ++key) wanted += fmt::format("count {}\n", (batches + 6 - key) / 7);
  EXPECT_THAT(result.out, HasSubstr(wanted + fmt::format("sum {}\n", batches)));
}

TEST(Join, WithoutALauncherAllRolesAreInOneProcess) {
  expect_counts(run_command({kBin + "ps_join", "100"}), 100);
}

TEST(Join, EveryRoleIsAProcessOfTheSameProgram) {
  const Scratch folder;
  JoinedProcesses job(folder, counting(2, 300));
  job.start_workers();
  for (const char* worker : {"worker 0", "worker 1"}) expect_counts(job.node(worker).finish(), 300);
  for (const char* other : {"server 0", "server 1", "manager 0"}) {
    job.node(other).signal(SIGTERM);
    const auto result = job.node(other).finish();
    EXPECT_EQ(result.code, 0) << other << ": " << result.err;
    EXPECT_EQ(result.out, "") << "only workers come back from join with something to do";
  }
}

TEST(Join, NothingIsLostOrDoneTwiceWhenProcessesDie) {
  const Scratch folder;
  JoinedProcesses job(folder, counting(3, 1500));
  job.start_workers();
  ASSERT_TRUE(job.node("worker 0").wait_for("begins"));
  ASSERT_TRUE(job.node("worker 1").wait_for("begins"));
  job.kill("server", 1);
  job.kill("worker", 0);
  ASSERT_TRUE(job.node("worker 0").wait_for("begins"));
  for (const char* worker : {"worker 0", "worker 1"})
    expect_counts(job.node(worker).finish(), 1500);
}

/// A worker stands still with a task in its hands. When nothing else is left to do, the other one
/// repeats the task, and all is done. What the first one pushes then is refused, and counted.
TEST(Join, ABackupThatIsFasterCountsAndTheOriginalDoesNot) {
  const Scratch folder;
  const std::string gate = folder / "gate";
  JoinedProcesses job(folder, counting(2, 60, {{"PS_BACKUP_MS", "200"}}));
  job.start("worker", 1, {{"PS_GATE", gate}});
  ASSERT_TRUE(job.node("worker 1").wait_for("waits with batch "));
  job.start("worker", 0);
  const CommandResult backup = job.node("worker 0").finish();
  expect_counts(backup, 60);
  EXPECT_THAT(backup.out, HasSubstr("all 60 once\n"));
  EXPECT_THAT(backup.out, HasSubstr("pushed 60, repeated 0\n"));
  std::ofstream(gate) << "open";
  const CommandResult original = job.node("worker 1").finish();
  expect_counts(original, 60);
  EXPECT_THAT(original.out, HasSubstr("all 60 once\n"));
  EXPECT_THAT(original.out, HasSubstr("pushed 5, repeated 5\n"));
}

TEST(Join, SaysWhatIsWrongWithTheEnvironment) {
  const auto result =
      run_command({kBin + "ps_join"}, {.environment = {{"TRIREME_ROLE", "worker"}}});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("TRIREME_PS_SERVERS is not set"));
}

}  // namespace
}  // namespace trireme::test
