// What all compressors promise: feedback loses nothing, NaN stays visible, bytes need no alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/compress_blocks.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

/// The loops for feedback against the plain steps: add, encode, decode, subtract.
TEST(Compress, FeedbackLeavesWhatTheBytesDoNotSay) {
  for (const Kind kind : kKinds) {
    const auto compressor = compress::make_compressor({.kind = kind});
    for (const int64_t size : kSizes) {
      const at::Tensor block = numbers(size, at::kFloat), residual = block.roll(1);
      const at::Tensor whole = block + residual;
      const at::Tensor bytes = compressor->encode_with_feedback(block, residual, kPlace);
      EXPECT_TRUE(same_bits(bytes, compressor->encode(whole, kPlace))) << compressor->name();
      at::Tensor said = torch::empty_like(block);
      compressor->decode(bytes, said);
      EXPECT_TRUE(torch::equal(residual, whole - said)) << compressor->name() << " of " << size;
    }
  }
}

/// In every step one addition and one subtraction are rounded.
TEST(Compress, WithFeedbackNothingIsLostOverManySteps) {
  constexpr int kSteps = 100;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Kind kind : kKinds) {
      const auto compressor = compress::make_compressor({.kind = kind, .ratio = 0.05});
      const at::Tensor residual = torch::zeros({5'000}, dtype);
      at::Tensor given = torch::zeros({5'000}, at::kDouble), received = given.clone();
      double largest = 0;
      for (int step = 0; step < kSteps; ++step) {
        torch::manual_seed(step);
        const at::Tensor block = torch::randn({5'000}, dtype);
        at::Tensor said = torch::empty_like(block);
        compressor->decode(
            compressor->encode_with_feedback(block, residual, {.seed = 1, .step = step}), said);
        given += block;
        received += said;
        largest = std::max(
            {largest, said.abs().max().item<double>(), residual.abs().max().item<double>()});
      }
      const double half_of_the_last_place = dtype == at::kFloat ? 0x1p-24 : 0x1p-53;
      EXPECT_LE((given - received - residual).abs().max().item<double>(),
                2 * kSteps * half_of_the_last_place * 2 * largest)
          << compressor->name();
      EXPECT_GT(given.abs().max().item<double>(), 10);
    }
  }
}

TEST(Compress, WhatIsNotFiniteStaysVisibleAndLeavesNoResidual) {
  const double kBad[] = {NAN, INFINITY, -INFINITY};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Kind kind : kKinds) {
      for (const std::string& cpu : cpus()) {
        const auto compressor = compress::make_compressor({.kind = kind, .cpu = cpu});
        for (const double bad : kBad) {
          for (const int64_t at : {0, 300, 4'999}) {
            at::Tensor block = numbers(5'000, dtype);
            block[at] = bad;
            const at::Tensor out = decoded(*compressor, block);
            EXPECT_FALSE(std::isfinite(out[at].item<double>())) << compressor->name() << bad;
            const at::Tensor residual = torch::zeros_like(block);
            at::Tensor again = torch::empty_like(block);
            compressor->decode(compressor->encode_with_feedback(block, residual, kPlace), again);
            EXPECT_FALSE(std::isfinite(again[at].item<double>())) << compressor->name() << bad;
            EXPECT_TRUE(torch::isfinite(residual).all().item<bool>()) << compressor->name() << bad;
          }
        }
      }
    }
  }
}

TEST(Compress, BlocksOfNothingButNansPassThroughTopK) {
  const auto topk = compress::make_compressor({.kind = Kind::TopK, .ratio = 0.01});
  const at::Tensor block = torch::full({1'000}, NAN), residual = torch::zeros({1'000});
  at::Tensor out = torch::empty({1'000});
  topk->decode(topk->encode_with_feedback(block, residual, kPlace), out);
  EXPECT_EQ(torch::isnan(out).sum().item<int64_t>(), 10);
  EXPECT_TRUE(torch::isfinite(residual).all().item<bool>());
}

TEST(Compress, BytesNeedNoAlignment) {
  for (const Kind kind : kKinds) {
    const auto compressor = compress::make_compressor({.kind = kind});
    const at::Tensor block = numbers(5'000, at::kFloat), bytes = compressor->encode(block, kPlace);
    EXPECT_EQ(bytes.numel(), compressor->num_bytes(5'000, at::kFloat));
    const at::Tensor moved = torch::empty({bytes.numel() + 3}, at::kByte).slice(0, 3);
    moved.copy_(bytes);
    at::Tensor out = torch::empty_like(block);
    compressor->decode(moved, out);
    EXPECT_TRUE(same_bits(out, decoded(*compressor, block)));
  }
}

TEST(Compress, WrongTensorsAreRefused) {
  const auto fp16 = compress::make_compressor({.kind = Kind::Fp16});
  EXPECT_THROW(fp16->encode(torch::zeros({2, 2}), kPlace), std::exception);
  EXPECT_THROW(fp16->encode(torch::zeros({4}, at::kInt), kPlace), std::exception);
  EXPECT_THROW(fp16->decode(torch::zeros({7}, at::kByte), torch::zeros({4})), std::exception);
  EXPECT_THROW(fp16->encode_with_feedback(torch::zeros({4}), torch::zeros({3}), kPlace),
               std::exception);
  EXPECT_THROW(compress::make_compressor({.kind = Kind::TopK, .ratio = 0}), std::exception);
  EXPECT_THROW(compress::make_compressor({.cpu = "z80"}), ConfigError);
  const auto topk = compress::make_compressor({.kind = Kind::TopK, .ratio = 1});
  at::Tensor hostile = topk->encode(torch::ones({4}), kPlace);
  hostile.slice(0, 0, 4).fill_(255);
  EXPECT_THROW(topk->decode(hostile, torch::zeros({4})), CommError);
}

}  // namespace
}  // namespace trireme::test
