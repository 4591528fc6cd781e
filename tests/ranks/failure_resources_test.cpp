// Jobs that come and go, ranks that outnumber cores, and a machine without memory to give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "support/failing_world.h"
#include "support/leftovers.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using namespace test;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t num_entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

std::size_t num_mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:trireme") != line.npos ? 1 : 0;
  return count;
}

/// From now on this process gets no more than that much more address space.
void allow_only(std::size_t more_bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more_bytes;
  const rlimit limit{bytes, RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
}

class Resources : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { left_.expect_none(); }
  const std::string& backend() const { return GetParam(); }
  Leftovers left_;
};
INSTANTIATE_TEST_SUITE_P(Over, Resources, ::testing::Values("shm", "tcp"),
                         [](const auto& name) { return name.param; });

TEST_P(Resources, OfManyShortJobsAllComeBack) {
  for (int job = 0; job < 10; ++job) {  // ten over each backend
    run_ranks(2, [&](const Rank& self) { expect_it_works(join(self, backend())); },
              {.deadline = kLongest});
    left_.expect_none();
  }
}

TEST_P(Resources, OfManyWorldsInOneProcessAllComeBack) {
  run_ranks(2,
            [&](const Rank& self) {
              const auto live = [&](int number) {
                const auto world = join(self, backend(), "meet" + std::to_string(number));
                expect_it_works(world.split("part", 0, 0));
                const auto memory = world.allocate({1 << 16});
                const auto large = torch::ones({1 << 20});
                auto started = world.all_reduce(large);  // wakes the helper thread
                world.all_reduce(memory).wait();
                started.wait();
                world.barrier();
              };
              live(0);  // torch starts threads of its own, once
              const auto files = num_entries("/proc/self/fd"),
                         threads = num_entries("/proc/self/task");
              for (int number = 1; number <= 20; ++number) live(number);
              EXPECT_EQ(num_entries("/proc/self/fd"), files);
              EXPECT_EQ(num_entries("/proc/self/task"), threads);
              EXPECT_EQ(num_mapped_segments(), 0u);
            },
            {.deadline = kLongest * 2});
}

TEST_P(Resources, OfAWorldThatFailedComeBackToo) {
  run_ranks(2,
            [&](const Rank& self) {
              const auto live = [&](int number) {
                const auto world = join(self, backend(), "meet" + std::to_string(number));
                const auto memory = world.allocate({1 << 20});
                world.barrier();
                std::optional<comm::Work> started;
                (void)until_it_fails(self, [&] {
                  if (!started) started = world.recv(memory, 1 - self.rank);  // nobody sends
                  if (self.rank == 0) world.abort("over");
                  world.barrier();
                });
              };
              live(0);
              const auto files = num_entries("/proc/self/fd"),
                         threads = num_entries("/proc/self/task");
              for (int number = 1; number <= 10; ++number) live(number);
              EXPECT_EQ(num_entries("/proc/self/fd"), files);
              EXPECT_EQ(num_entries("/proc/self/task"), threads);
              EXPECT_EQ(num_mapped_segments(), 0u);
            },
            {.deadline = kLongest * 2});
}

TEST_P(Resources, AreSharedByRanksThatOutnumberCores) {
  run_ranks(12,
            [&](const Rank& self) {
              const auto world = join(self, backend());
              const auto began = std::chrono::steady_clock::now();
              for (int i = 0; i < 200; ++i) world.barrier();
              if (self.rank == 0)
                record_ms("200 barriers of 12 ranks (" + backend() + ")",
                          ms_between(began, std::chrono::steady_clock::now()));
              expect_it_works(world);
            },
            {.deadline = kLongest * 3});
}

TEST(NoMemory, ForASegmentIsOneSentenceOnEveryRankAndTheWorldGoesOn) {
  for (const int poor : {0, 1}) {  // the rank that makes it, and one that maps it
    SCOPED_TRACE("rank " + std::to_string(poor) + " has no memory");
    Leftovers left;
    run_ranks(3,
              [&](const Rank& self) {
                const auto world = join(self, "shm");
                expect_it_works(world);
                leave_word(self, "pid" + std::to_string(self.rank), std::to_string(::getpid()));
                if (self.rank == poor) allow_only(256 << 20);
                std::string said;
                try {
                  (void)world.allocate({int64_t{1} << 30});  // 4 GiB
                } catch (const CommError& error) {
                  said = error.what();
                }
                EXPECT_THAT(said,
                            AllOf(HasSubstr("allocate 4"), HasSubstr("on 'world'"),
                                  HasSubstr("rank " + std::to_string(poor) + " (host "),
                                  HasSubstr("pid " + read_word(self, "pid" + std::to_string(poor))),
                                  HasSubstr("Cannot allocate memory"), Not(HasSubstr("\n"))));
                EXPECT_THAT(said, HasSubstr("ulimit -v")) << "the remedy is cut off";
                expect_it_works(world);
                const auto small = world.allocate({1000});
                small.fill_(1);
                world.all_reduce(small).wait();
                EXPECT_EQ(small[999].item<float>(), 3);
                EXPECT_LE(num_mapped_segments(), 2u) << "the part that failed is still mapped";
              },
              {.deadline = kLongest * 2});
    left.expect_none();
  }
}

TEST_P(Resources, MissingWhenRanksMeetAreOneSentence) {
  // So little that not even a thread can be started: whoever it is says so and goes, and the others
  // do not wait for it until their patience ends.
  run_ranks(3,
            [&](const Rank& self) {
              ::setenv("TRIREME_TIMEOUT_S", "3", 1);
              const auto began = std::chrono::steady_clock::now();
              if (self.rank == 1) allow_only(1 << 20);
              try {
                const auto world = join(self, backend());
                world.barrier();
                ADD_FAILURE() << "they met";
              } catch (const Error& error) {
                const std::string said = error.what();
                EXPECT_THAT(said, Not(HasSubstr("\n")));
                if (self.rank == 1) {
                  EXPECT_THAT(said, ::testing::AnyOf(HasSubstr("memory"), HasSubstr("thread")));
                } else {
                  EXPECT_THAT(said, HasSubstr("rank 1"));
                }
              }  // anything else is not ours, says too little, and fails here
              if (self.rank == 1) {
                EXPECT_LT(ms_between(began, std::chrono::steady_clock::now()), 2500);
              }
            },
            {.deadline = kLongest * 2});
}

}  // namespace
}  // namespace trireme
