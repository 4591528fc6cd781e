// Attention over a sequence that ranks share gives what one rank gives, values and gradients, for
// every kind, any shape, and documents.
#include "trireme/nn/context_attention.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <random>

#include "support/backends.h"
#include "trireme/core/error.h"
#include "trireme/nn/attention_block.h"

namespace trireme::test {
namespace {

using comm::Communicator;

// Sums of up to a hundred terms of size 1 in another order, in float64.
constexpr double kSameSums = 1e-12;

constexpr std::pair<nn::ContextKind, const char*> kNamedKinds[] = {
    {nn::ContextKind::Ring, "ring"},
    {nn::ContextKind::Ulysses, "ulysses"},
    {nn::ContextKind::Gather, "gather"}};

struct Shape {
  int64_t rows = 2, heads = 4, kv_heads = 2, head = 8, positions = 12;
  bool documents = false, dropout = false;
};

std::string describe(const Shape& of) {
  return fmt::format("{} rows, heads {}/{} of {}, {} positions, documents {}, dropout {}", of.rows,
                     of.heads, of.kv_heads, of.head, of.positions, of.documents, of.dropout);
}

/// Random numbers that every rank draws alike.
struct Inputs {
  explicit Inputs(const Shape& of) {
    auto generator = at::detail::createCPUGenerator(
        static_cast<uint64_t>(of.positions * 1000 + of.heads * 10 + of.head));
    const auto draw = [&](int64_t heads) {
      return at::randn({of.rows, heads, of.positions, of.head}, generator, at::kDouble);
    };
    q = draw(of.heads);
    k = draw(of.kv_heads);
    v = draw(of.kv_heads);
    dy = draw(of.heads);
    if (of.documents) {
      const at::Tensor starts =
          at::rand({of.rows, of.positions}, generator, at::kDouble) < 3.0 / 10;
      documents = std::get<0>((starts * at::arange(of.positions)).cummax(1));
    }
    if (of.dropout)
      keep =
          (at::rand({of.rows, of.heads, of.positions, of.positions}, generator, at::kDouble) < 0.8)
              .to(at::kDouble) /
          0.8;
  }
  at::Tensor q, k, v, dy, documents, keep;
};

/// {y, dq, dk, dv}, with everything computed in full.
std::vector<at::Tensor> plainly(const Inputs& in) {
  const at::Tensor q = in.q.clone().requires_grad_(), k = in.k.clone().requires_grad_(),
                   v = in.v.clone().requires_grad_();
  const int64_t T = q.size(2), repeat = q.size(1) / k.size(1);
  at::Tensor hidden = at::ones({T, T}, at::kBool).triu(1).view({1, 1, T, T});
  if (in.documents.defined())
    hidden = hidden.logical_or(at::arange(T) < in.documents.view({-1, 1, T, 1}));
  const at::Tensor scores =
      at::matmul(q, k.repeat_interleave(repeat, 1).mT()) / std::sqrt(double(q.size(3)));
  at::Tensor weights = at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
  if (in.keep.defined()) weights = weights * in.keep;
  const at::Tensor y = at::matmul(weights, v.repeat_interleave(repeat, 1));
  y.backward(in.dy);
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

at::Tensor columns_of(const at::Tensor& x, const Positions& positions, int64_t dim) {
  return x.index_select(dim, at::tensor(positions.each(), at::kLong));
}

/// This rank's part of the same.
std::vector<at::Tensor> shared(const Inputs& in, const Communicator& group, nn::ContextKind kind) {
  const Positions mine = head_and_tail(in.q.size(2), group.size(), group.rank());
  const auto leaf = [&](const at::Tensor& x) { return columns_of(x, mine, 2).requires_grad_(); };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  nn::ContextCall call{.positions = mine};
  if (in.documents.defined()) call.documents = columns_of(in.documents, mine, 1);
  if (in.keep.defined())
    call.dropout = [&](Range heads, const Positions& queries, const Positions& keys) {
      return columns_of(columns_of(in.keep.narrow(1, heads.begin, heads.count), queries, 2), keys,
                        3);
    };
  const at::Tensor y = nn::context_attention({q, k, v}, {group, kind}, call);
  y.backward(columns_of(in.dy, mine, 2));
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

void check(const Shape& of, int ranks, nn::ContextKind kind, const char* name) {
  const Inputs in(of);
  const auto wanted = plainly(in);
  run_world(kThreads, ranks, [&](const Communicator& world) {
    at::set_num_threads(1);
    const Positions mine = head_and_tail(of.positions, ranks, world.rank());
    const auto got = shared(in, world, kind);
    const char* const names[] = {"y", "dq", "dk", "dv"};
    for (std::size_t i = 0; i < 4; ++i) {
      const at::Tensor expected = columns_of(wanted[i], mine, 2);
      ASSERT_EQ(got[i].sizes(), expected.sizes());
      if (expected.numel() == 0) continue;
      EXPECT_LE((got[i] - expected).abs().max().item<double>(), kSameSums)
          << names[i] << " by " << name << " on rank " << world.rank() << " of " << ranks << ": "
          << describe(of);
    }
  });
}

TEST(ContextAttention, IsThatOfOneRankForRandomShapes) {
  std::mt19937 random(5);
  const auto pick = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  for (int number = 0; number < 36; ++number) {
    const int ranks = 2 + number % 3;
    const int64_t kv_heads = pick(1, 3), group = pick(1, 3);
    const Shape of{.rows = pick(1, 3),
                   .heads = kv_heads * group,
                   .kv_heads = kv_heads,
                   .head = pick(1, 9),
                   .positions = pick(2 * ranks, 45),
                   .documents = number % 3 == 1,
                   .dropout = number % 4 == 3};
    for (const auto& [kind, name] : kNamedKinds)
      if (kind != nn::ContextKind::Ulysses || of.heads >= ranks) check(of, ranks, kind, name);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ContextAttention, MayLeaveRanksWithoutPositions) {
  for (const int64_t positions : {1, 2, 3, 5, 7})
    for (const auto& [kind, name] : kNamedKinds)
      check({.rows = 1, .heads = 4, .kv_heads = 2, .head = 3, .positions = positions}, 4, kind,
            name);
}

TEST(ContextAttention, IsThatOfOneRankWhereDocumentsAreLongAndShort) {
  for (const auto& [kind, name] : kNamedKinds)
    check({.rows = 3, .heads = 3, .kv_heads = 3, .head = 4, .positions = 61, .documents = true}, 3,
          kind, name);
}

TEST(ContextAttention, RefusesFewerHeadsThanRanksForUlyssesAndPositionsThatAreOthers) {
  run_world(kThreads, 3, [](const Communicator& world) {
    const auto x = [](int64_t heads, int64_t positions) {
      return at::zeros({1, heads, positions, 4}, at::kDouble);
    };
    const auto said = [&](nn::ContextKind kind, const nn::QueryKeyValue& parts,
                          const Positions& positions) -> std::string {
      try {
        nn::context_attention(parts, {world, kind}, {.positions = positions});
      } catch (const MisuseError& error) {
        return error.what();
      }
      return "";
    };
    const Positions mine = head_and_tail(12, 3, world.rank());
    const auto few = x(2, 4);
    EXPECT_THAT(said(nn::ContextKind::Ulysses, {few, few, few}, mine),
                ::testing::HasSubstr("deals 2 heads to 3 ranks"));
    EXPECT_THAT(said(nn::ContextKind::Ring, {few, few, few}, {}),
                ::testing::HasSubstr("must know which positions this rank has"));
    EXPECT_THAT(said(nn::ContextKind::Ring, {few, few, few}, {{{0, 4}}, 12}),
                ::testing::HasSubstr("has 4 positions (0-3 of 12), but should have"));
  });
}

// The block that is computed in full is held against the one of libtorch.
TEST(AttentionBlock, IsTheSameInFullAsFused) {
  const Inputs in({.rows = 2, .heads = 4, .kv_heads = 2, .head = 8, .positions = 70});
  const at::Tensor ones = at::ones({2, 4, 70, 70}, at::kDouble);
  const at::Tensor hidden = at::arange(70) < at::arange(70).view({1, 1, 70, 1}) - 9;
  for (const nn::BlockMask& mask :
       {nn::BlockMask{}, nn::BlockMask{.causal = true}, nn::BlockMask{.hidden = hidden}}) {
    nn::BlockMask full = mask;
    full.keep = ones;
    const auto a = nn::block_attention(in.q, in.k, in.v, mask);
    const auto b = nn::block_attention(in.q, in.k, in.v, full);
    EXPECT_TRUE(at::allclose(a.out, b.out, kSameSums, kSameSums));
    EXPECT_TRUE(at::allclose(a.lse, b.lse, kSameSums, kSameSums));
    const auto c = nn::block_gradients(in.dy, in.q, in.k, in.v, a, mask);
    const auto d = nn::block_gradients(in.dy, in.q, in.k, in.v, b, full);
    for (const auto& [x, y] : {std::pair(c.q, d.q), {c.k, d.k}, {c.v, d.v}})
      EXPECT_TRUE(at::allclose(x, y, kSameSums, kSameSums));
  }
}

TEST(AttentionBlock, ThatAQuerySeesNothingOfAddsNothing) {
  const Inputs in({.rows = 1, .heads = 2, .kv_heads = 2, .head = 8, .positions = 40});
  at::Tensor hidden = at::zeros({1, 1, 40, 40}, at::kBool);
  hidden.narrow(2, 3, 5).fill_(true);
  auto all = nn::block_attention(in.q, in.k, in.v, {});
  const auto before = all.out.narrow(2, 3, 5).clone();
  nn::merge(all, nn::block_attention(in.q, in.k, in.v, {.hidden = hidden}));
  EXPECT_TRUE(all.out.isfinite().all().item<bool>());
  EXPECT_TRUE(at::allclose(all.out.narrow(2, 3, 5), before, kSameSums, kSameSums));
}

}  // namespace
}  // namespace trireme::test
