// A user's program in every role, started as a launcher does it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <map>
#include <memory>
#include <sstream>

#include "support/command.h"
#include "support/scratch.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

/// The roles of one job.
class JoinedProcesses {
 public:
  JoinedProcesses(const Scratch& folder, int servers, int workers, int batches)
      : folder_(folder), servers_(servers), workers_(workers), batches_(batches) {
    start("manager", 0);
    for (int i = 0; i < servers; ++i) start("server", i);
    for (int i = 0; i < workers; ++i) start("worker", i);
  }

  void start(const std::string& role, int index) {
    all_[fmt::format("{} {}", role, index)] = std::make_unique<Command>(
        std::vector<std::string>{kBin + "ps_join", std::to_string(batches_)},
        CommandOptions{.environment = {{"TRIREME_ROLE", role},
                                       {"TRIREME_ROLE_INDEX", std::to_string(index)},
                                       {"TRIREME_PS_SERVERS", std::to_string(servers_)},
                                       {"TRIREME_PS_WORKERS", std::to_string(workers_)},
                                       {"TRIREME_PS_RANKS", "1"},
                                       {"TRIREME_PS_JOB", "joined"},
                                       {"TRIREME_PS_MANAGER", folder_ / "manager"},
                                       {"TRIREME_PS_COPIES", "1"},
                                       {"TRIREME_SECRET", "a secret of tests only"}},
                       .deadline = 60s});
  }
  Command& node(const std::string& name) { return *all_.at(name); }

  void kill(const std::string& role, int index) {
    Command& process = node(fmt::format("{} {}", role, index));
    process.signal(SIGKILL);
    process.finish();
    start(role, index);
  }

 private:
  const Scratch& folder_;
  int servers_, workers_, batches_;
  std::map<std::string, std::unique_ptr<Command>> all_;
};

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
  JoinedProcesses job(folder, 2, 2, 300);
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
  JoinedProcesses job(folder, 3, 2, 1500);
  ASSERT_TRUE(job.node("worker 0").wait_for("begins"));
  ASSERT_TRUE(job.node("worker 1").wait_for("begins"));
  job.kill("server", 1);
  job.kill("worker", 0);
  ASSERT_TRUE(job.node("worker 0").wait_for("begins"));
  for (const char* worker : {"worker 0", "worker 1"})
    expect_counts(job.node(worker).finish(), 1500);
}

TEST(Join, SaysWhatIsWrongWithTheEnvironment) {
  const auto result =
      run_command({kBin + "ps_join"}, {.environment = {{"TRIREME_ROLE", "worker"}}});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("TRIREME_PS_SERVERS is not set"));
}

}  // namespace
}  // namespace trireme::test
