// The caller's mistakes: one sentence with the values, before anything is sent, and the world goes
// on.
#include <gmock/gmock.h>

#include "support/backends.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using comm::Algorithm;
using comm::Communicator;
using comm::Rows;
using core::ReduceOp;
using ::testing::AllOf;
using ::testing::HasSubstr;

ON_EVERY_BACKEND_AND_GPUS(Misuse);

/// What the whole suite promises after each refusal.
void expect_usable(const Communicator& world) {
  at::Tensor data = at::full({100}, world.rank() + 1, at::kLong);
  world.all_reduce(data).wait();
  ASSERT_EQ(data[99].item().toInt(), world.size() * (world.size() + 1) / 2);
}

#define EXPECT_REFUSED(call, ...)                                                              \
  do {                                                                                         \
    EXPECT_THAT(sentence_of<c10::Error>([&] { (call).wait(); }), AllOf(__VA_ARGS__)) << #call; \
    expect_usable(world);                                                                      \
  } while (false)

TEST_P(Misuse, ATensorThatIsNotContiguousIsRefusedWithItsStrides) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    const at::Tensor turned = at::zeros({4, 6}).t(), whole = at::zeros({8}), part = at::zeros({4});
    EXPECT_REFUSED(world.all_reduce(turned), HasSubstr("contiguous"), HasSubstr("[6, 4]"),
                   HasSubstr("[1, 6]"), HasSubstr("all_reduce"));
    EXPECT_REFUSED(world.broadcast(at::zeros({10}).slice(0, 0, 10, 2), 0), HasSubstr("contiguous"),
                   HasSubstr("strides [2]"));
    EXPECT_REFUSED(world.reduce(turned, 0), HasSubstr("contiguous"));
    EXPECT_REFUSED(world.all_gather(whole, at::zeros({8}).slice(0, 0, 8, 2)),
                   HasSubstr("contiguous"), HasSubstr(" in "));
    EXPECT_REFUSED(world.all_gather(at::zeros({16}).slice(0, 0, 16, 2), part),
                   HasSubstr("contiguous"), HasSubstr(" out "));
    EXPECT_REFUSED(world.reduce_scatter(part, at::zeros({16}).slice(0, 0, 16, 2)),
                   HasSubstr("contiguous"));
    EXPECT_REFUSED(world.all_to_all(turned, turned), HasSubstr("contiguous"));
    EXPECT_REFUSED(world.gather(whole, at::zeros({8}).slice(0, 0, 8, 2), 0),
                   HasSubstr("contiguous"));
    EXPECT_REFUSED(world.scatter(at::zeros({8}).slice(0, 0, 8, 2), whole, 0),
                   HasSubstr("contiguous"));
    EXPECT_REFUSED(world.send(turned, 1 - world.rank()), HasSubstr("contiguous"));
    EXPECT_REFUSED(world.recv(turned, 1 - world.rank()), HasSubstr("contiguous"));
  });
}

TEST_P(Misuse, UndefinedTensorsAndDtypesThatCannotBeReducedAreRefused) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    EXPECT_REFUSED(world.all_reduce(at::Tensor{}), HasSubstr("undefined"),
                   HasSubstr("all_reduce, rank"));
    EXPECT_REFUSED(world.broadcast(at::Tensor{}, 0), HasSubstr("undefined"));
    EXPECT_REFUSED(world.all_gather(at::zeros({2}), at::Tensor{}), HasSubstr("undefined"));
    EXPECT_REFUSED(world.send(at::Tensor{}, 1 - world.rank()), HasSubstr("undefined"));
    EXPECT_REFUSED(world.gather(at::Tensor{}, at::Tensor{}, 0), HasSubstr("undefined"));
    EXPECT_REFUSED(world.all_reduce(at::zeros({4}, at::kBool)), HasSubstr("Bool"),
                   HasSubstr("float32"));
    EXPECT_REFUSED(world.reduce(at::zeros({4}, at::kShort), 0), HasSubstr("Short"));
    EXPECT_REFUSED(
        world.reduce_scatter(at::zeros({2}, at::kComplexFloat), at::zeros({4}, at::kComplexFloat)),
        HasSubstr("Complex"));
    EXPECT_REFUSED(world.all_reduce(at::zeros({4}).to_sparse()), HasSubstr("dense"));
  });
}

TEST_P(Misuse, RanksThatDoNotExistAndOneselfAreRefusedByNumber) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    const at::Tensor data = at::zeros({4});
    EXPECT_REFUSED(world.broadcast(data, 2), HasSubstr("root 2"), HasSubstr("group of 2"));
    EXPECT_REFUSED(world.broadcast(data, -1), HasSubstr("root -1"));
    EXPECT_REFUSED(world.reduce(data, 7), HasSubstr("root 7"));
    EXPECT_REFUSED(world.gather(at::zeros({8}), data, 9), HasSubstr("root 9"));
    EXPECT_REFUSED(world.scatter(data, at::zeros({8}), -3), HasSubstr("root -3"));
    EXPECT_REFUSED(world.send(data, 2), HasSubstr("to 2"));
    EXPECT_REFUSED(world.recv(data, 65'536), HasSubstr("from 65536"));
    EXPECT_REFUSED(world.send(data, world.rank()), HasSubstr("itself"));
    EXPECT_REFUSED(world.recv(data, world.rank()), HasSubstr("itself"));
  });
}

TEST_P(Misuse, RowsThatDoNotAddUpAreRefusedWithTheSums) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    const at::Tensor five = at::zeros({5, 3}), two = at::zeros({2, 3});
    EXPECT_REFUSED(world.all_gather(five, two), HasSubstr("5 rows"), HasSubstr("2 ranks"),
                   HasSubstr("evenly"));
    EXPECT_REFUSED(world.all_gather(five, two, {2, 2}), HasSubstr("add up to 4"), HasSubstr("5"));
    EXPECT_REFUSED(world.all_gather(five, two, {5}), HasSubstr("1 entries"), HasSubstr("2 ranks"));
    EXPECT_REFUSED(world.all_gather(five, two, {6, -1}), HasSubstr("-1"));
    EXPECT_REFUSED(world.all_gather(five, five, {1, 4}), HasSubstr("[5, 3]"));
    EXPECT_REFUSED(world.reduce_scatter(two, five), HasSubstr("5 rows"));
    EXPECT_REFUSED(world.reduce_scatter(two, five, ReduceOp::Sum, {1, 1}),
                   HasSubstr("add up to 2"));
    EXPECT_REFUSED(world.all_to_all(five, five), HasSubstr("5 rows"));
    EXPECT_REFUSED(world.all_to_all(five, five, {2, 3}, {1, 1}), HasSubstr("add up to 2"));
    EXPECT_REFUSED(world.all_to_all(at::zeros({2, 4}), two), HasSubstr("[2, 4]"),
                   HasSubstr("[2, 3]"));
    EXPECT_REFUSED(world.gather(at::zeros({4, 3}), two, 0, {1, 3}), HasSubstr("rows"));
    EXPECT_REFUSED(world.all_gather(at::zeros({}), at::zeros({})), HasSubstr("dim 0"));
    EXPECT_REFUSED(world.all_gather(at::zeros({4}), at::zeros({2}, at::kDouble)),
                   HasSubstr("Double"), HasSubstr("Float"));
    EXPECT_REFUSED(world.all_gather(std::vector{at::zeros({4})}, std::vector<at::Tensor>{}),
                   HasSubstr("1 outputs"), HasSubstr("0 inputs"));
  });
}

TEST_P(Misuse, AnAlgorithmThatTheOperationDoesNotHaveIsRefused) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    const at::Tensor data = at::zeros({4}), part = at::zeros({2});
    const auto refused = [&](auto call, const char* name) {
      std::string sentence;
      try {
        call();
      } catch (const MisuseError& error) {
        sentence = error.what();
      } catch (const c10::Error& error) {
        sentence = error.what();
      }
      EXPECT_THAT(sentence, AllOf(HasSubstr(name), HasSubstr("no algorithm")));
      expect_usable(world);
    };
    refused([&] { world.broadcast(data, 0, Algorithm::Ring).wait(); }, "broadcast");
    refused([&] { world.reduce(data, 0, ReduceOp::Sum, Algorithm::OneShot).wait(); }, "reduce");
    refused([&] { world.all_gather(data, part, {}, Algorithm::OneShot).wait(); }, "all_gather");
    refused([&] { world.reduce_scatter(part, data, ReduceOp::Sum, {}, Algorithm::Tree).wait(); },
            "reduce_scatter");
  });
}

TEST_P(Misuse, AMistakeOfOneRankAloneDoesNotPutItOutOfStep) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    if (world.rank() == 0) {
      EXPECT_THROW(world.broadcast(at::zeros({4}), 0, Algorithm::Ring).wait(), std::exception);
      EXPECT_THROW(world.broadcast(at::zeros({4}), 5).wait(), c10::Error);
      EXPECT_THROW(world.all_reduce(at::zeros({4}, at::kBool)).wait(), c10::Error);
    }
    expect_usable(world);
  });
}

/// The first of the list is fine, the second is not: nothing may have been started, or it would
/// write into memory that the caller takes back.
TEST_P(Misuse, AListWithOneBadTensorStartsNothing) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    if (world.rank() == 0) {
      std::vector<at::Tensor> outs = {at::zeros({200'000}), at::zeros({5})},
                              ins = {marked(0, {100'000}), at::zeros({2})};
      EXPECT_THROW(world.all_gather(outs, ins).wait(), c10::Error);
    }
    expect_usable(world);
  });
}

TEST_P(Misuse, SplitAndAllocateSayWhatIsWrongWithWhatTheyWereGiven) {
  run_world(GetParam(), 2, [](const Communicator& world) {
    EXPECT_THAT(sentence_of<c10::Error>([&] { world.split("bad", -4, 0); }),
                AllOf(HasSubstr("-4"), HasSubstr("'bad'")));
    EXPECT_THAT(sentence_of<c10::Error>([&] { world.allocate({3, -2}); }), HasSubstr("[3, -2]"));
    expect_usable(world);
  });
}

}  // namespace
}  // namespace trireme::test
