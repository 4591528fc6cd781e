// Ranks that do not mean the same operation: all of them learn it, with both sides, instead of
// hanging or going on with garbage. And ranks that do not come at all.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "support/backends.h"
#include "support/reference.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using comm::Algorithm;
using comm::Communicator;
using comm::Rows;
using core::ReduceOp;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ON_EVERY_BACKEND_AND_GPUS(Mismatch);

/// What two ranks call instead of the same thing, and what the error must say of it.
struct Mismatched {
  std::string name;
  std::function<void(const Communicator& world)> call;
  std::vector<std::string> said = {};
};

template <class First, class Second>
Mismatched differing(std::string name, First first, Second second, std::vector<std::string> said) {
  return {std::move(name),
          [=](const Communicator& world) {
            if (world.rank() == 0)
              first(world);
            else
              second(world);
          },
          std::move(said)};
}

/// Each case in a world of its own: a mismatch ends it. The op itself may be over on the rank that
/// had nothing to wait for; then the next one says it. And a rank may still be joining when the
/// others are as far as that: then joining says it.
void expect_mismatches(const BackendUnderTest& backend, int size,
                       const std::vector<Mismatched>& cases) {
  run_worlds(backend, size, [&](int, const Join& join) {
    for (const Mismatched& one : cases) {
      SCOPED_TRACE(one.name);
      std::optional<Communicator> world;
      const std::string sentence = sentence_of<CommError>([&] {
        world = join(one.name);
        world->set_timeout(milliseconds(2500));
        one.call(*world);
        world->barrier();
        world->barrier();
      });
      EXPECT_THAT(sentence, Not(HasSubstr("no answer"))) << "it hung until the timeout";
      for (const std::string& part : one.said) EXPECT_THAT(sentence, HasSubstr(part));
      if (world) {
        EXPECT_THROW(world->barrier(), CommError) << "the world has ended, and says so again";
      }
    }
  });
}

at::Tensor floats(at::IntArrayRef shape) {
  return at::zeros(shape);
}

TEST_P(Mismatch, OfOperationsShapesDtypesAndReductionsNamesBothSides) {
  const auto reduce = [](at::Tensor data, ReduceOp op = ReduceOp::Sum,
                         Algorithm algorithm = Algorithm::Auto) {
    return [=](const Communicator& world) { world.all_reduce(data, op, algorithm).wait(); };
  };
  expect_mismatches(
      GetParam(), 2,
      {differing("ops", reduce(floats({1024})),
                 [](const Communicator& world) { world.broadcast(floats({1024}), 0).wait(); },
                 {"rank 0: all_reduce [1024] float32", "rank 1: broadcast [1024] float32"}),
       differing(
           "large-ops", reduce(floats({500'000})),
           [](const Communicator& world) { world.broadcast(floats({500'000}), 1).wait(); },
           {"rank 0: all_reduce [500000] float32", "rank 1: broadcast [500000] float32 root 1"}),
       differing("shapes", reduce(floats({4, 6})), reduce(floats({6, 4})),
                 {"rank 0: all_reduce [4, 6] float32", "rank 1: all_reduce [6, 4] float32"}),
       differing("large-shapes", reduce(floats({300'000})), reduce(floats({300'001})),
                 {"rank 0: all_reduce [300000] float32", "rank 1: all_reduce [300001] float32"}),
       differing("dtypes", reduce(at::zeros({64}, at::kInt)), reduce(floats({64})),
                 {"rank 0: all_reduce [64] int32", "rank 1: all_reduce [64] float32"}),
       differing("reductions", reduce(floats({64})), reduce(floats({64}), ReduceOp::Max),
                 {"rank 0: all_reduce [64] float32", "rank 1: all_reduce [64] float32 max"}),
       differing("algorithms", reduce(floats({64}), ReduceOp::Sum, Algorithm::Ring),
                 reduce(floats({64}), ReduceOp::Sum, Algorithm::Tree), {"by ring", "by tree"}),
       differing("barrier", reduce(floats({64})),
                 [](const Communicator& world) { world.barrier(); },
                 {"rank 0: all_reduce [64] float32", "rank 1: barrier"}),
       differing("empty", reduce(floats({0})), reduce(floats({1024})),
                 {"rank 0: all_reduce [0] float32", "rank 1: all_reduce [1024] float32"}),
       differing("large-empty", reduce(floats({0})), reduce(floats({500'000})),
                 {"rank 0: all_reduce [0] float32", "rank 1: all_reduce [500000] float32"})});
}

TEST_P(Mismatch, OfRootsIsFoundWhoeverWaitsForWhom) {
  const auto broadcast = [](int root) {
    return [=](const Communicator& world) { world.broadcast(floats({8}), root).wait(); };
  };
  const auto reduce = [](int root) {
    return [=](const Communicator& world) { world.reduce(floats({8}), root).wait(); };
  };
  const auto gather = [](int root) {
    return [=](const Communicator& world) { world.gather(floats({16}), floats({8}), root).wait(); };
  };
  const auto scatter = [](int root) {
    return
        [=](const Communicator& world) { world.scatter(floats({8}), floats({16}), root).wait(); };
  };
  expect_mismatches(
      GetParam(), 2,
      {differing("broadcast-both-send", broadcast(0), broadcast(1),
                 {"rank 0: broadcast [8] float32 root 0", "rank 1: broadcast [8] float32 root 1"}),
       differing("broadcast-both-wait", broadcast(1), broadcast(0),
                 {"rank 0: broadcast [8] float32 root 1", "rank 1: broadcast [8] float32 root 0"}),
       differing("reduce-both-send", reduce(1), reduce(0), {"root 0", "root 1"}),
       differing("reduce-both-wait", reduce(0), reduce(1), {"root 0", "root 1"}),
       differing("gather-both-wait", gather(0), gather(1), {"root 0", "root 1"}),
       differing("scatter-both-wait", scatter(1), scatter(0), {"root 0", "root 1"}),
       differing("scatter-both-send", scatter(0), scatter(1), {"root 0", "root 1"})});
}

TEST_P(Mismatch, OfRowsIsFoundAndIsNotGarbage) {
  const auto all_to_all = [](Rows out, Rows in) {
    return [=](const Communicator& world) {
      world.all_to_all(floats({out[0] + out[1], 3}), floats({in[0] + in[1], 3}), out, in).wait();
    };
  };
  const auto gather = [](Rows rows) {
    return [=](const Communicator& world) {
      world
          .all_gather(floats({4, 3}), floats({rows[static_cast<std::size_t>(world.rank())], 3}),
                      rows)
          .wait();
    };
  };
  const auto scatter = [](Rows rows) {
    return [=](const Communicator& world) {
      world
          .reduce_scatter(floats({rows[static_cast<std::size_t>(world.rank())], 3}), floats({4, 3}),
                          ReduceOp::Sum, rows)
          .wait();
    };
  };
  expect_mismatches(
      GetParam(), 2,
      {differing("all-to-all", all_to_all({1, 2}, {1, 5}), all_to_all({4, 1}, {2, 1}),
                 {"all_to_all", "rank 0", "rank 1"}),
       differing("all-to-all-none-sent", all_to_all({1, 2}, {1, 0}), all_to_all({4, 1}, {2, 1}),
                 {"all_to_all"}),
       differing("all-to-all-none-wanted", all_to_all({1, 2}, {1, 4}), all_to_all({0, 1}, {2, 1}),
                 {"all_to_all"}),
       differing("all-gather", gather({1, 3}), gather({2, 2}), {"all_gather"}),
       differing("all-gather-none", gather({0, 4}), gather({1, 3}), {"all_gather"}),
       differing("reduce-scatter", scatter({1, 3}), scatter({2, 2}), {"reduce_scatter"})});
}

TEST_P(Mismatch, OfWhatIsSentAndWhatIsReceivedNamesBothShapes) {
  const auto send = [](at::Tensor data) {
    return [=](const Communicator& world) { world.send(data, 1, 4).wait(); };
  };
  const auto recv = [](at::Tensor data) {
    return [=](const Communicator& world) { world.recv(data, 0, 4).wait(); };
  };
  expect_mismatches(
      GetParam(), 2,
      {differing("shorter", send(floats({10})), recv(floats({12})),
                 {"rank 0: send [10] float32", "rank 1: recv [12] float32"}),
       differing("longer", send(floats({12})), recv(floats({10})),
                 {"rank 0: send [12] float32", "rank 1: recv [10] float32"}),
       differing("empty", send(floats({0})), recv(floats({10})),
                 {"rank 0: send [0] float32", "rank 1: recv [10] float32"}),
       differing("dtype", send(at::zeros({10}, at::kInt)), recv(floats({10})),
                 {"send [10] int32", "recv [10] float32"}),
       differing("other-dtypes", send(at::zeros({10}, at::kBool)), recv(at::zeros({10}, at::kByte)),
                 {"send [10]", "recv [10] uint8"})});
}

TEST_P(Mismatch, OfOneRankAmongManyReachesAllOfThem) {
  const Mismatched odd_one = {"odd-one",
                              [](const Communicator& world) {
                                if (world.rank() == 2)
                                  world.all_gather(floats({4, 2}), floats({1, 2})).wait();
                                else
                                  world.all_reduce(floats({4, 2})).wait();
                              },
                              {"rank 2: all_gather [4, 2] float32", ": all_reduce [4, 2] float32"}};
  const Mismatched one_ahead = {"one-ahead",  // rank 1 forgot the barrier
                                [](const Communicator& world) {
                                  if (world.rank() != 1) world.barrier();
                                  world.all_reduce(floats({4})).wait();
                                },
                                {"barrier", "rank 1: all_reduce [4] float32"}};
  const Mismatched in_a_group = {
      "in-a-group",
      [](const Communicator& world) {
        const Communicator group = world.split("pair", world.rank() / 2, -world.rank());
        if (world.rank() == 3)
          group.all_reduce(floats({5})).wait();
        else
          group.all_reduce(floats({6})).wait();
      },
      {"rank 2: all_reduce [6] float32", "rank 3: all_reduce [5] float32"}};
  expect_mismatches(GetParam(), 4, {odd_one, one_ahead, in_a_group});
}

TEST_P(Mismatch, LeavesARecordOfEveryRankThatNamesTheOpsAndTheCause) {
  // The ranks that are processes inherit it.
  const std::string name =
      std::filesystem::temp_directory_path() / ("trireme-record-" + std::to_string(::getpid()));
  ::setenv("TRIREME_RECORD_DIR", name.c_str(), /*overwrite=*/0);
  const std::filesystem::path folder = ::getenv("TRIREME_RECORD_DIR");
  run_worlds(GetParam(), 2, [&](int rank, const Join& join) {
    const Communicator world = join("recorded");
    at::Tensor fine = floats({33});
    world.all_reduce(fine).wait();
    EXPECT_THROW(
        {
          world.all_reduce(floats({rank + 100})).wait();
          world.barrier();
        },
        CommError);
    std::ifstream file(folder / ("rank-" + std::to_string(rank) + ".json"));
    const auto record = core::Json::parse(file, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(record.is_discarded()) << "rank " << rank << ": no file, or not JSON";
    EXPECT_EQ(record["rank"], rank);
    EXPECT_THAT(record["cause"].get<std::string>(),
                AllOf(HasSubstr("all_reduce [100]"), HasSubstr("all_reduce [101]")));
    const auto& ops = record["ops"];
    ASSERT_GE(ops.size(), 2u);
    bool finished = false, pending = false;
    for (const auto& op : ops) {
      finished |= op["op"] == "all_reduce [33] float32" && op["state"] == "finished" &&
                  op["group"] == "world";
      pending |= op["op"] == "all_reduce [" + std::to_string(rank + 100) + "] float32" &&
                 op["state"] == "pending";
    }
    EXPECT_TRUE(finished && pending) << record.dump(1);
  });
  std::filesystem::remove_all(folder);
  ::unsetenv("TRIREME_RECORD_DIR");
}

ON_EVERY_BACKEND_AND_GPUS(Timeout);

/// Rank 2 of 3 does not come: ranks 0 and 1 must name it, and only it, soon after the timeout.
void expect_rank_2_named(const BackendUnderTest& backend, const std::string& op,
                         const std::function<void(const Communicator&)>& call) {
  run_world(backend, 3, [&](const Communicator& world) {
    constexpr auto kTimeout = milliseconds(300);
    world.set_timeout(kTimeout);
    world.barrier();
    const auto began = std::chrono::steady_clock::now();
    if (world.rank() == 2) {
      while (std::chrono::steady_clock::now() - began < milliseconds(900))
        std::this_thread::sleep_for(milliseconds(10));
      EXPECT_THROW(world.barrier(), TimeoutError) << "it too learns why the world ended";
      return;
    }
    const std::string sentence = sentence_of<TimeoutError>([&] { call(world); });
    const auto took = std::chrono::steady_clock::now() - began;
    EXPECT_THAT(sentence, AllOf(HasSubstr(op), HasSubstr("no answer from rank 2 (host"),
                                HasSubstr("300 ms")));
    EXPECT_THAT(sentence, AllOf(Not(HasSubstr("rank 0 (host")), Not(HasSubstr("rank 1 (host"))))
        << "a rank that did come is blamed";
    EXPECT_GE(took, milliseconds(250));
    EXPECT_LT(took, milliseconds(900));
  });
}

TEST_P(Timeout, NamesTheRankThatDidNotComeToASmallOne) {
  expect_rank_2_named(GetParam(), "all_reduce",
                      [](const Communicator& world) { world.all_reduce(floats({16})).wait(); });
}

TEST_P(Timeout, NamesTheRankThatDidNotComeToALargeOne) {
  expect_rank_2_named(GetParam(), "all_reduce", [](const Communicator& world) {
    world.all_reduce(floats({1'000'000})).wait();
  });
}

TEST_P(Timeout, NamesTheRankThatDidNotComeToARing) {
  expect_rank_2_named(GetParam(), "all_reduce", [](const Communicator& world) {
    world.all_reduce(floats({50'000}), ReduceOp::Sum, Algorithm::Ring).wait();
  });
}

TEST_P(Timeout, NamesTheRankThatDidNotComeWhenALaterOpIsWaitedForFirst) {
  expect_rank_2_named(GetParam(), "all_reduce", [](const Communicator& world) {
    at::Tensor a = floats({16}), b = floats({200'000}), c = floats({16});
    auto first = world.all_reduce(a), second = world.all_reduce(b), third = world.all_reduce(c);
    third.wait();
  });
}

TEST_P(Timeout, NamesTheRankThatDidNotSend) {
  expect_rank_2_named(GetParam(), "recv",
                      [](const Communicator& world) { world.recv(floats({16}), 2, 5).wait(); });
}

TEST_P(Timeout, NamesTheRankThatDidNotComeToABarrier) {
  expect_rank_2_named(GetParam(), "barrier", [](const Communicator& world) { world.barrier(); });
}

}  // namespace
}  // namespace trireme::test
