// Started operations that outlive what started them, fail, or are left behind by an exception; and
// memory that outlives the communicator that asked for it.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "support/backends.h"
#include "support/reference.h"
#include "support/scratch.h"
#include "trireme/comm/local/local.h"
#include "trireme/core/error.h"
#include "trireme/core/trace.h"
#include "trireme/mesh/init.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using comm::Work;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ON_EVERY_BACKEND(Works);

TEST_P(Works, OutliveTheCommunicatorThatStartedThem) {
  run_worlds(GetParam(), 2, [](int rank, const Join& join) {
    at::Tensor data = marked(rank, {300'000});
    Work work;
    {
      const Communicator world = join("short-lived");
      work = world.all_reduce(data);
    }
    work.wait();
    EXPECT_TRUE(same_bits(data, marked(0, {300'000}) + marked(1, {300'000})));

    // Private memory of a group that is gone before its work is.
    at::Tensor sent = marked(rank, {250'000});
    {
      const Communicator world = join("long-lived");
      auto broadcast = world.split("part", 0, rank).broadcast(sent, 0);
      world.barrier();
    }
    EXPECT_TRUE(same_bits(sent, marked(0, {250'000})));
  });
}

TEST_P(Works, ThatFailedSayItEachTimeTheyAreAsked) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    at::Tensor data = at::zeros({100'000});
    world.barrier();
    if (world.rank() == 1) {
      world.abort("a reason");
      return;
    }
    std::optional<Work> work;
    try {
      work = world.all_reduce(data);
    } catch (const CommError&) {
      return;  // the abort came first, and the start said so
    }
    EXPECT_THAT(sentence_of<CommError>([&] { work->wait(); }), HasSubstr("a reason"));
    EXPECT_THAT(sentence_of<CommError>([&] { work->wait(); }), HasSubstr("a reason"));
    EXPECT_THROW(work->synchronize(), CommError);
    EXPECT_THAT(sentence_of<CommError>([&] { (void)work->done(); }), HasSubstr("a reason"));
  });
}

/// Rank 0 throws with a receive under way that nobody will ever send; rank 1 waits for it. Both
/// must be through long before any timeout, and nobody may blame the rank that only waited.
TEST_P(Works, ThatAnExceptionLeavesBehindEndTheWorldAtOnce) {
  run_worlds(GetParam(), 2, [](int rank, const Join& join) {
    const auto began = std::chrono::steady_clock::now();
    std::optional<Communicator> world = join("abandoned");
    world->set_timeout(seconds(60));
    at::Tensor data = at::zeros({16});
    if (rank == 0) {
      try {
        auto work = world->recv(data, 1);
        throw std::runtime_error("an error of this rank's own");
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "an error of this rank's own");
      }
      EXPECT_THROW(world->barrier(), CommError) << "the world has ended";
    } else {
      EXPECT_THAT(sentence_of<CommError>([&] { world->recv(data, 0).wait(); }),
                  AllOf(HasSubstr("rank 0 (host"), HasSubstr("an error of its own"),
                        Not(HasSubstr("no answer"))));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(30));
  });
}

/// One that all ranks have come to ends while the stack unwinds, and the world goes on.
TEST_P(Works, ThatEverybodyHasComeToSurviveAnException) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    at::Tensor data = marked(world.rank(), {64});
    try {
      auto work = world.all_reduce(data);
      throw std::runtime_error("handled");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(same_bits(data, marked(0, {64}) + marked(1, {64})));
    world.barrier();
  });
}

/// A list of operations, of which a later one cannot start: the world fails in between. The first
/// must not be left running on tensors that are gone.
TEST_P(Works, OfAListEndTogetherWhenALaterOneCannotStart) {
  for (int round = 0; round < (GetParam().threads ? 20 : 1); ++round) {
    run_worlds(GetParam(), 3, [&](int rank, const Join& join) {
      const Communicator world = join("list-" + std::to_string(round));
      world.barrier();
      std::jthread abort;
      if (rank == 2) abort = std::jthread([&] { world.abort("enough"); });
      try {
        for (int i = 0; i < 50; ++i) {
          std::vector<at::Tensor> outs, ins;
          for (int k = 0; k < 12; ++k) {
            outs.push_back(at::zeros({3 * 60'000}));
            ins.push_back(at::ones({60'000}));
          }
          auto work = world.all_gather(outs, ins);
          outs.clear();
          ins.clear();
          work.wait();
        }
        ADD_FAILURE() << "nothing failed";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("enough"));
      }
    });
  }
}

/// Ranks 0 and 2 reduce each other's private memory in place while rank 1 gives up. Whoever throws
/// frees its tensor: no other may still be working in it. (AddressSanitizer sees it directly; here
/// the memory is unmapped, so that a late touch is a crash.)
TEST(LocalWorks, NobodyTouchesTheMemoryOfARankThatHasThrown) {
  for (int round = 0; round < 6; ++round) {
    const auto hub = comm::make_local_hub(3);
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const Communicator world("world", comm::make_local(hub, rank));
        try {
          const Communicator pair = world.split("pair", rank == 1 ? 1 : 0, rank);
          if (rank == 1) {
            std::this_thread::sleep_for(milliseconds(round % 5));
            world.abort("rank 1 has had enough");  // perhaps before the others have left the split
            return;
          }
          for (;;) {
            at::Tensor data = at::ones({16 << 20});  // mmapped, and unmapped when it is freed
            pair.all_reduce(data).wait();
          }
        } catch (const CommError&) {
        }
      });
    }
  }
}

TEST(LocalWorks, AnAllToAllOfOtherSizesFailsOnTheRankThatFindsIt) {
  test::run_world(test::kThreads, 2, [](const Communicator& world) {
    // Rank 0 sends 5 rows to rank 1, which expects 4.
    const bool sends_more = world.rank() == 0;
    const comm::Rows in = {1, sends_more ? 5 : 1}, out = {sends_more ? 1 : 4, 1};
    const auto total = [](const comm::Rows& rows) { return rows[0] + rows[1]; };
    auto work = world.all_to_all(at::zeros({total(out), 3}), at::zeros({total(in), 3}), out, in);
    if (sends_more) {
      try {
        work.wait();  // it has all that it expects
      } catch (const CommError&) {
      }
    } else {
      EXPECT_THROW(work.wait(), CommError);
    }
  });
}

TEST(Worlds, OfOneProcessHaveOptionsOfTheirOwn) {
  const Scratch scratch;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto url = [&](const char* name) {
        return "file://" + (scratch / name) + "?rank=" + std::to_string(rank) + "&size=2";
      };
      const Communicator patient =
          init({.url = url("patient"), .backend = "tcp", .timeout = seconds(40)});
      const Communicator hasty = init({.url = url("hasty"),
                                       .backend = "shm",
                                       .timeout = seconds(20),
                                       .record_dir = scratch / "records"});
      EXPECT_EQ(patient.backend(), "tcp");
      EXPECT_EQ(hasty.backend(), "shm");
      patient.barrier();
      hasty.barrier();
      hasty.set_timeout(milliseconds(200));
      at::Tensor data = at::zeros({4});
      if (rank == 0) {
        EXPECT_THAT(sentence_of<TimeoutError>([&] { hasty.recv(data, 1).wait(); }),
                    HasSubstr("200 ms"));
      } else {
        std::this_thread::sleep_for(milliseconds(400));
        EXPECT_THROW(hasty.barrier(), TimeoutError);
      }
      patient.barrier();  // the other world's end is not this one's
      EXPECT_TRUE(std::ifstream(scratch / "records/rank-" + std::to_string(rank) + ".json").good());
    });
  }
}

TEST(Traced, IsWhatBeganAfterTheTraceDid) {
  std::atomic<bool> traced = false;
  run_world(kThreads, 2, [&](const Communicator& world) {
    at::Tensor data = at::ones({2});
    const auto trace = std::make_shared<core::Trace>(world.rank());
    if (world.rank() == 0) {
      Work before = world.all_reduce(data);
      world.set_trace(trace);
      traced = true;
      before.wait();
    } else {
      while (!traced) std::this_thread::yield();
      world.all_reduce(data).wait();
    }
    world.barrier();
    world.set_trace(nullptr);
    if (world.rank() != 0) return;
    EXPECT_THAT(trace->take(), AllOf(HasSubstr("barrier"), Not(HasSubstr("all_reduce"))));
  });
}

ON_EVERY_BACKEND(PooledMemory);

/// The mappings of this process that are shared memory of ours.
int num_segments() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:trireme") != line.npos;
  return count;
}

TEST_P(PooledMemory, OfACommunicatorThatIsGoneIsUsedAgain) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    int after_first = 0;
    for (int round = 0; round < 12; ++round) {
      const Communicator part = world.split("part", 0, world.rank());
      at::Tensor memory = part.allocate({1 << 18});
      memory.fill_(world.rank() + 1.0);
      part.all_reduce(memory).wait();
      EXPECT_EQ(memory[5].item<float>(), 3.0f);
      world.barrier();
      if (round == 1) after_first = num_segments();
      if (round > 1) {
        EXPECT_LE(num_segments(), after_first) << "round " << round;
      }
    }
  });
}

TEST_P(PooledMemory, IsUsedAgainBeyondTheSixtyFourthToo) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    std::vector<at::Tensor> held;
    for (int i = 0; i < 80; ++i) held.push_back(world.allocate({1024}));
    const int before = num_segments();
    held.erase(held.begin() + 70, held.end());
    for (int i = 0; i < 30; ++i) {
      at::Tensor again = world.allocate({1024});
      EXPECT_EQ(again.abs().sum().item<float>(), 0.0f) << "memory that is handed out is zeroed";
      again.fill_(7);
      world.all_reduce(again).wait();
      EXPECT_EQ(again[1023].item<float>(), 14.0f);
    }
    EXPECT_LE(num_segments(), before);
  });
}

/// The first rank to have its memory uses it at once, while the others may not be as far.
TEST_P(PooledMemory, MayBeUsedAsSoonAsAllocateHasReturned) {
  run_world(GetParam(), 4, [](const Communicator& world) {
    std::vector<at::Tensor> held;
    for (int i = 0; i < 60; ++i) {
      at::Tensor memory = world.allocate({9000 + i});
      memory.fill_(world.rank());
      world.all_reduce(memory).wait();
      EXPECT_EQ(memory[0].item<float>(), 6.0f);
      held.push_back(memory);
    }
  });
}

}  // namespace
}  // namespace trireme::test
