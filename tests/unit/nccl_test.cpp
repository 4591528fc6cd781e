// What of the NCCL backend can be tested without a GPU: which library is opened, what an op
// becomes, and which ranks may use it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/types.h>

#include <map>

#include "support/backends.h"
#include "support/sentence.h"
#include "trireme/comm/nccl/calls.h"
#include "trireme/comm/nccl/library.h"
#include "trireme/comm/nccl/placement.h"
#include "trireme/comm/nccl/sentinel.h"
#include "trireme/comm/op.h"
#include "trireme/core/error.h"

namespace trireme::test::nccl_without_gpu {
namespace {

using namespace comm;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Lines = std::vector<std::string>;

/// The calls of one rank, as text.
Lines lines_of(const Op& op, int rank, int size) {
  Lines lines;
  for (const auto& call : nccl::calls_of(lower(op, describe(op, rank, size), size), rank))
    lines.push_back(to_string(call));
  return lines;
}

TEST(NcclLibrary, IsTheOneAskedForElseLibtorchsElseTheSystems) {
  EXPECT_THAT(nccl::library_candidates("/my/libnccl.so.2", "/torch/lib"),
              ElementsAre("/my/libnccl.so.2"));
  EXPECT_THAT(nccl::library_candidates("", "/a/torch/lib"),
              ElementsAre("/a/torch/lib/../../nvidia/nccl/lib/libnccl.so.2",
                          "/a/torch/lib/libnccl.so.2", "libnccl.so.2"));
  EXPECT_THAT(nccl::library_candidates("", ""), ElementsAre("libnccl.so.2"));
  EXPECT_EQ(nccl::version_text(22809), "2.28.9");
}

TEST(NcclLibrary, ThatCannotBeOpenedIsOneSentenceWithTheRemedy) {
  EXPECT_THAT(sentence_of<Error>([] { nccl::Library({"/nowhere/libnccl.so.2"}); }),
              AllOf(HasSubstr("NCCL cannot be opened"), HasSubstr("/nowhere/libnccl.so.2"),
                    HasSubstr("TRIREME_NCCL_LIBRARY")));
  // A library, but another one.
  EXPECT_THAT(sentence_of<Error>([] { nccl::Library({"libc.so.6"}); }),
              HasSubstr("has no function ncclGetVersion"));
}

TEST(NcclCalls, OfOpsOnWholeTensorsAreOneEach) {
  const auto floats = torch::zeros({6});
  EXPECT_THAT(lines_of(AllReduce{floats, ReduceOp::Mean}, 1, 3),
              ElementsAre("all_reduce in+0 -> out+0, 6 float32 mean"));
  EXPECT_THAT(lines_of(Reduce{torch::zeros({6}, torch::kBFloat16), 2, ReduceOp::Max}, 1, 3),
              ElementsAre("reduce in+0 -> out+0, 6 bfloat16 max, rank 2"));
  // What only moves, moves as bytes.
  EXPECT_THAT(lines_of(Broadcast{torch::zeros({3}, torch::kShort), 1}, 0, 3),
              ElementsAre("broadcast in+0 -> out+0, 6 uint8, rank 1"));
  EXPECT_THAT(lines_of(AllReduce{torch::zeros({0})}, 0, 3), IsEmpty());
  EXPECT_THAT(lines_of(Barrier{}, 0, 3), IsEmpty());
}

TEST(NcclCalls, OfEvenPartsAreOneEach) {
  const auto whole = torch::zeros({6, 2}), part = torch::zeros({2, 2});
  EXPECT_THAT(lines_of(AllGather{whole, part}, 1, 3),
              ElementsAre("all_gather in+0 -> out+0, 16 uint8"));
  EXPECT_THAT(lines_of(AllGather{whole, part, {2, 2, 2}}, 1, 3),
              ElementsAre("all_gather in+0 -> out+0, 16 uint8"));
  EXPECT_THAT(lines_of(ReduceScatter{part, whole}, 1, 3),
              ElementsAre("reduce_scatter in+0 -> out+0, 4 float32 sum"));
}

TEST(NcclCalls, OfUnevenGathersAreABroadcastOfEachPart) {
  const Rows rows = {1, 0, 3};
  const auto whole = torch::zeros({4, 2});
  EXPECT_THAT(lines_of(AllGather{whole, torch::zeros({3, 2}), rows}, 2, 3),
              ElementsAre("broadcast out+0 -> out+0, 8 uint8, rank 0",
                          "broadcast in+0 -> out+8, 24 uint8, rank 2"));
  EXPECT_THAT(lines_of(AllGather{whole, torch::zeros({0, 2}), rows}, 1, 3),
              ElementsAre("broadcast out+0 -> out+0, 8 uint8, rank 0",
                          "broadcast out+8 -> out+8, 24 uint8, rank 2"));
}

TEST(NcclCalls, OfUnevenReduceScattersAreAReduceOfEachPart) {
  const Rows rows = {1, 0, 3};
  const auto whole = torch::zeros({4, 2});
  EXPECT_THAT(lines_of(ReduceScatter{torch::zeros({1, 2}), whole, ReduceOp::Mean, rows}, 0, 3),
              ElementsAre("reduce in+0 -> out+0, 2 float32 mean, rank 0",
                          "reduce in+8 -> in+8, 6 float32 mean, rank 2"));
}

TEST(NcclCalls, OfAllToAllAreSendsAndReceivesThatFitEachOther) {
  // Rank a sends b so many rows.
  const int64_t rows[3][3] = {{1, 2, 0}, {0, 0, 3}, {4, 1, 1}};
  std::map<std::pair<int, int>, int64_t> sent, received;
  for (int rank = 0; rank < 3; ++rank) {
    Rows in, out;
    for (int peer = 0; peer < 3; ++peer) {
      in.push_back(rows[rank][peer]);
      out.push_back(rows[peer][rank]);
    }
    const Op op = AllToAll{torch::zeros({out[0] + out[1] + out[2], 5}, torch::kByte),
                           torch::zeros({in[0] + in[1] + in[2], 5}, torch::kByte), out, in};
    for (const auto& call : nccl::calls_of(lower(op, describe(op, rank, 3), 3), rank)) {
      ASSERT_GT(call.count, 0);
      if (call.kind == nccl::Call::Kind::Send) sent[{rank, call.peer}] = call.count;
      if (call.kind == nccl::Call::Kind::Recv) received[{call.peer, rank}] = call.count;
    }
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(sent.size(), 6u);
  EXPECT_EQ((sent[{2, 0}]), 20);
  // One that sends nothing may still receive.
  EXPECT_THAT(
      lines_of(
          AllToAll{
              torch::zeros({2}, torch::kByte), torch::zeros({0}, torch::kByte), {0, 2}, {0, 0}},
          0, 2),
      ElementsAre("recv -> out+0, 2 uint8, rank 1"));
}

TEST(NcclCalls, OfGatherAndScatterConcernTheRootAndEachRank) {
  const Rows rows = {2, 0, 1};
  const auto whole = torch::zeros({3}, torch::kInt), part = torch::zeros({2}, torch::kInt);
  EXPECT_THAT(lines_of(Gather{whole, part, 0, rows}, 0, 3),
              ElementsAre("send in+0, 8 uint8, rank 0", "recv -> out+0, 8 uint8, rank 0",
                          "recv -> out+8, 4 uint8, rank 2"));
  EXPECT_THAT(lines_of(Gather{{}, torch::zeros({1}, torch::kInt), 0, rows}, 2, 3),
              ElementsAre("send in+0, 4 uint8, rank 0"));
  EXPECT_THAT(lines_of(Gather{{}, torch::zeros({0}, torch::kInt), 0, rows}, 1, 3), IsEmpty());
  EXPECT_THAT(lines_of(Scatter{part, whole, 0, rows}, 0, 3),
              ElementsAre("send in+0, 8 uint8, rank 0", "send in+8, 4 uint8, rank 2",
                          "recv -> out+0, 8 uint8, rank 0"));
  EXPECT_THAT(lines_of(Scatter{torch::zeros({1}, torch::kInt), {}, 0, rows}, 2, 3),
              ElementsAre("recv -> out+0, 4 uint8, rank 0"));
}

TEST(NcclCalls, OfSendsAndReceivesAreOnACommunicatorOfTheTwo) {
  EXPECT_THAT(lines_of(Send{torch::zeros({3}), 4, 9}, 2, 6),
              ElementsAre("send in+0, 12 uint8, rank 1"));
  EXPECT_THAT(lines_of(Recv{torch::zeros({3}), 2, 9}, 4, 6),
              ElementsAre("recv -> out+0, 12 uint8, rank 0"));
}

/// The kinds of collectives on tensors of `rows` rows a rank, in a world of two.
std::vector<Op> collectives(int64_t rows, int rank) {
  const auto whole = torch::zeros({2 * rows, 3}), part = torch::zeros({rows, 3});
  return {AllReduce{whole},
          AllReduce{whole, ReduceOp::Max, Algorithm::Ring},
          Broadcast{whole, 1},
          Reduce{whole, 0},
          AllGather{whole, part},
          AllGather{whole,
                    rank == 0 ? torch::zeros({rows - 1, 3}) : torch::zeros({rows + 1, 3}),
                    {rows - 1, rows + 1}},
          ReduceScatter{part, whole, ReduceOp::Mean},
          Gather{whole, part, 1},
          Scatter{part, whole, 1}};
}

/// A sentinel has the description of an op of megabytes and no data; it must end as any op.
TEST(NcclSentinel, OfEveryKindMeetsOverEveryBackend) {
  for (const BackendUnderTest& backend : all_backends()) {
    SCOPED_TRACE(backend.name);
    run_world(backend, 2, [&](const Communicator& world) {
      const auto carrier = world.carrier();
      uint64_t number = backend.threads ? 0 : 1;  // processes have met in a barrier
      const auto nothing = torch::empty({0}, torch::kByte);
      for (const Op& op : collectives(500'000, world.rank())) {
        const core::OpInfo info = describe(op, world.rank(), 2);
        carrier->start(nccl::without_data(info, nothing), info, ++number)
            ->wait(std::chrono::seconds(10));
      }
      core::OpInfo info = describe(AllReduce{torch::zeros({100 + world.rank()})}, world.rank(), 2);
      EXPECT_THAT(sentence_of<CommError>([&] {
                    carrier->start(nccl::without_data(info, nothing), info, ++number)
                        ->wait(std::chrono::seconds(10));
                  }),
                  AllOf(HasSubstr("rank 0: all_reduce [100] float32"),
                        HasSubstr("rank 1: all_reduce [101] float32")));
    });
  }
}

std::vector<RankEntry> ranks_with(const std::vector<std::pair<std::string, std::string>>& gpus) {
  std::vector<RankEntry> entries;
  for (const auto& [host, gpu] : gpus) {
    RankEntry& entry = entries.emplace_back();
    entry.host = entry.host_key = host;
    entry.gpu = gpu;
  }
  return entries;
}

TEST(NcclPlacement, NeedsAGpuAndTheSameNcclOnEveryRank) {
  const auto problem = [](const auto& gpus) { return nccl::place(ranks_with(gpus)).problem; };
  using Gpus = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(problem(Gpus{{"a", "u0 22809"}, {"a", "u1 22809"}}), "");
  EXPECT_TRUE(nccl::place(ranks_with({{"a", "u0 22809"}, {"a", "u1 22809"}})).possible);
  EXPECT_THAT(problem(Gpus{{"a", "u0 22809"}, {"b", ""}}), HasSubstr("rank 1 (host b) has no GPU"));
  EXPECT_THAT(problem(Gpus{{"a", "u0 0"}}), HasSubstr("rank 0 (host a) has no NCCL"));
  EXPECT_THAT(problem(Gpus{{"a", "u0 22809"}, {"b", "u1 23007"}}),
              AllOf(HasSubstr("rank 0 has NCCL 2.28.9"), HasSubstr("rank 1 (host b) has 2.30.7")));
}

TEST(NcclPlacement, AllowsSharedGpusOnlyWhereNcclDoes) {
  const auto old = nccl::place(ranks_with({{"a", "u0 22809"}, {"a", "u0 22809"}}));
  EXPECT_FALSE(old.possible);
  EXPECT_THAT(old.problem, AllOf(HasSubstr("ranks 0 and 1 share a GPU"), HasSubstr("2.28.9"),
                                 HasSubstr("TRIREME_NCCL_LIBRARY")));
  const auto fresh = nccl::place(ranks_with({{"a", "u0 23007"}, {"a", "u0 23007"}}));
  EXPECT_TRUE(fresh.possible);
  EXPECT_EQ(fresh.sharing, nccl::Sharing::SharedGpu);
  // The same number on two hosts is two GPUs.
  EXPECT_EQ(nccl::place(ranks_with({{"a", "u0 22809"}, {"b", "u0 22809"}})).sharing,
            nccl::Sharing::GpuOfItsOwn);
}

TEST(Op, KnowsTheDeviceThatItsTensorsShare) {
  EXPECT_EQ(device_of(Barrier{}), at::Device(at::kCPU));
  EXPECT_EQ(device_of(AllReduce{torch::zeros({2})}), at::Device(at::kCPU));
  EXPECT_EQ(device_of(Gather{{}, torch::zeros({2}), 0}), at::Device(at::kCPU));
  EXPECT_EQ(device_of(AllGather{torch::empty({2}, at::kMeta), torch::zeros({1})}), std::nullopt);
}

}  // namespace
}  // namespace trireme::test::nccl_without_gpu
