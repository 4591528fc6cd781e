// A parameter server of real processes: manager, servers and workers that are killed and restarted
// leave the weights of an undisturbed run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "support/command.h"
#include "support/scratch.h"
#include "tests/ps/ps_job.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;

/// The processes of a job. Each can be killed, and is then started anew.
class PsProcesses {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  PsProcesses(const Scratch& folder, const PsJob& job, const Environment& of_manager = {})
      : folder_(folder), job_(job) {
    start("manager", 0, of_manager);
    for (uint32_t i = 0; i < job.servers; ++i) start("server", i);
    for (uint32_t i = 0; i < job.workers; ++i) start("worker", i);
  }
  ~PsProcesses() {
    for (auto& [name, process] : all_) {
      if (name.starts_with("worker")) continue;
      ::kill(process->pid(), SIGKILL);
      process->finish();
    }
  }

  void kill_and_restart(const std::string& role, uint32_t index) {
    auto& process = all_.at(fmt::format("{} {}", role, index));
    ::kill(process->pid(), SIGKILL);
    process->finish();
    start(role, index);
  }

  /// Stops a process for so long, and lets it go on.
  void suspend(const std::string& role, uint32_t index, std::chrono::milliseconds time) {
    const Command& process = *all_.at(fmt::format("{} {}", role, index));
    process.signal(SIGSTOP);
    std::this_thread::sleep_for(time);
    process.signal(SIGCONT);
  }
  /// Waits for the end of one that ends itself, and starts it anew.
  CommandResult finish_and_restart(const std::string& role, uint32_t index) {
    const CommandResult ended = all_.at(fmt::format("{} {}", role, index))->finish();
    start(role, index);
    return ended;
  }

  Command& worker(uint32_t index) { return *all_.at(fmt::format("worker {}", index)); }

 private:
  void start(const std::string& role, uint32_t index, const Environment& environment = {}) {
    const std::vector<std::string> arguments = {TRIREME_BINARY_DIR "/bin/ps_node",
                                                role,
                                                std::to_string(index),
                                                folder_ / "",
                                                std::to_string(job_.servers),
                                                std::to_string(job_.workers),
                                                std::to_string(job_.copies),
                                                std::to_string(job_.batches)};
    all_[fmt::format("{} {}", role, index)] = std::make_unique<Command>(
        arguments, CommandOptions{.environment = environment, .deadline = 600s});
  }

  const Scratch& folder_;
  PsJob job_;
  std::map<std::string, std::unique_ptr<Command>> all_;
};

std::vector<double> weights_in(const std::string& out) {
  std::vector<double> weights;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("weight ")) weights.push_back(std::stod(line.substr(7)));
  return weights;
}

void expect_plain_weights(PsProcesses& processes, const PsJob& job) {
  const auto wanted = plain_loop(ps_job(job));
  for (uint32_t i = 0; i < job.workers; ++i) {
    const auto done = processes.worker(i).finish();
    EXPECT_EQ(done.code, 0) << done.err;
    const auto got = weights_in(done.out);
    ASSERT_EQ(got.size(), wanted.size()) << done.out << done.err;
    for (std::size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], wanted[k], 1e-12);
  }
}

TEST(PsProcesses, TrainInLockstepAsOneProcess) {
  const Scratch folder;
  const PsJob job{.servers = 2, .workers = 3, .copies = 0, .batches = 60};
  PsProcesses processes(folder, job);
  expect_plain_weights(processes, job);
}

/// A clock that jumps by 3 s, twice what a node may be silent: for the manager, that all others
/// were silent; for the others, that their life is over.
TEST(PsProcesses, AnyOfThemMayBeStoppedForAWhile) {
  const Scratch folder;
  const PsJob job{.servers = 3, .workers = 2, .copies = 1, .batches = 1600};
  PsProcesses processes(folder, job);
  ASSERT_TRUE(processes.worker(0).wait_for("step "));
  ASSERT_TRUE(processes.worker(1).wait_for("step "));
  for (const char* role : {"manager", "server", "worker"}) processes.suspend(role, 0, 3s);
  expect_plain_weights(processes, job);
}

/// It ends with the sentence; the next one goes on from what the log has.
TEST(PsProcesses, AFullDiskEndsTheManagerAndNotTheJob) {
  const Scratch folder;
  const PsJob job{.servers = 2, .workers = 2, .copies = 1, .batches = 400};
  const std::string place = folder / "/ps";  // as the nodes write it
  PsProcesses processes(folder, job,
                        {{"LD_PRELOAD", TRIREME_BINARY_DIR "/lib/libfaulty_disk.so"},
                         {"FAULTY_DISK", "enospc 60 " + place}});
  const CommandResult ended = processes.finish_and_restart("manager", 0);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, testing::HasSubstr("manager 0: cannot write " + place +
                                            "/manager.log: No space left on device"));
  expect_plain_weights(processes, job);
}

/// One of each role; with TRIREME_PS_KILLS that many more of any role.
TEST(PsProcesses, AnyOfThemMayBeKilled) {
  const char* asked = std::getenv("TRIREME_PS_KILLS");
  const int more = asked != nullptr ? std::stoi(asked) : 0;
  const Scratch folder;
  const PsJob job{.servers = 3,
                  .workers = 2,
                  .copies = 1,
                  .batches = 2000 + 1200 * static_cast<uint64_t>(more)};
  PsProcesses processes(folder, job);
  ASSERT_TRUE(processes.worker(0).wait_for("step "));
  std::mt19937 random(1);
  for (int i = 0; i < 3 + more; ++i) {
    const uint32_t which = i < 3 ? 2 * static_cast<uint32_t>(i) : random() % 6;
    if (which == 0)
      processes.kill_and_restart("manager", 0);
    else if (which <= 3)
      processes.kill_and_restart("server", which - 1);
    else
      processes.kill_and_restart("worker", which - 4);
    ASSERT_TRUE(processes.worker(0).wait_for("step ")) << i;
    ASSERT_TRUE(processes.worker(1).wait_for("step ")) << i;
    // Longer than it takes to be noticed: a death must not be the second one of a chain.
    std::this_thread::sleep_for(i < 3 ? 500ms : 2500ms);
  }
  expect_plain_weights(processes, job);
}

}  // namespace
}  // namespace trireme::test
