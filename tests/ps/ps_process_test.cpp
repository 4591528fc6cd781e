// A parameter server of real processes: manager, servers and workers that are killed and restarted
// leave the weights of an undisturbed run.
#include <gmock/gmock.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "support/scratch.h"
#include "tests/ps/ps_processes.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;

TEST(PsProcesses, TrainInLockstepAsOneProcess) {
  const Scratch folder;
  const PsJob job{.servers = 2, .workers = 3, .copies = 0, .batches = 60};
  PsProcesses processes(folder / "", job);
  expect_plain_weights(processes, job);
}

/// A clock that jumps by 2 s, more than a node may be silent: for the manager, that all others
/// were silent; for the others, that their life is over.
TEST(PsProcesses, AnyOfThemMayBeStoppedForAWhile) {
  const Scratch folder;
  const PsJob job{.servers = 3, .workers = 2, .copies = 1, .batches = 1000};
  PsProcesses processes(folder / "", job);
  ASSERT_TRUE(processes.worker(0).wait_for("step "));
  ASSERT_TRUE(processes.worker(1).wait_for("step "));
  for (const char* role : {"manager", "server", "worker"}) processes.suspend(role, 0, 2s);
  expect_plain_weights(processes, job);
}

/// It ends with the sentence; the next one goes on from what the log has.
TEST(PsProcesses, AFullDiskEndsTheManagerAndNotTheJob) {
  const Scratch folder;
  const PsJob job{.servers = 2, .workers = 2, .copies = 1, .batches = 400};
  const std::string place = folder / "ps";
  PsProcesses processes(place, job,
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
  PsProcesses processes(folder / "", job);
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
