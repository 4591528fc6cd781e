// Every compressor against its formula, written out in float64, one element at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "support/compress_blocks.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"

namespace trireme::test {
namespace {

/// The nearest number with so many bits after the point, to even. `largest` is the last finite one.
double nearest(double x, int mantissa_bits, int smallest_exponent, double largest) {
  if (x == 0) return x;
  const double unit = std::ldexp(1, std::max(std::ilogb(x), smallest_exponent) - mantissa_bits);
  const double rounded = std::rint(x / unit) * unit;
  return std::abs(rounded) > largest ? std::copysign(INFINITY, x) : rounded;
}

void for_all_blocks(const std::function<void(const at::Tensor& block)>& body) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t size : kSizes) {
      SCOPED_TRACE(fmt::format("{} x {}", size, c10::toString(dtype)));
      body(numbers(size, dtype));
    }
}

TEST(Compress, HalvesAreTheNearestNumbersThatSixteenBitsHold) {
  const auto fp16 = compress::make_compressor({.kind = Kind::Fp16});
  const auto bf16 = compress::make_compressor({.kind = Kind::Bf16});
  for_all_blocks([&](at::Tensor block) {
    if (block.numel() > 100) {
      block[0] = 65519.99;  // float32 and float64 differ here
      block[1] = 65520.0;
      block[2] = -1e30;
      block[3] = 1 + 0x1p-11;            // halfway, to even
      block[4] = 1 + 0x1p-11 + 0x1p-40;  // float64: just above halfway
      block[5] = 3 * 0x1p-25;            // halfway between subnormals
    }
    const auto exact = values(block);
    const auto half = values(decoded(*fp16, block)), bfloat = values(decoded(*bf16, block));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      ASSERT_EQ(half[i], nearest(exact[i], 10, -14, 65504)) << i << ": " << exact[i];
      ASSERT_EQ(bfloat[i], nearest(exact[i], 7, -126, 0x1.fep127)) << i << ": " << exact[i];
    }
    EXPECT_EQ(fp16->encode(block, kPlace).numel(), 2 * block.numel());
  });
}

/// The random number of an element, from the generator that is one call for 16 elements.
double random_of(int64_t element) {
  const uint64_t words[] = {kPlace.seed, kPlace.stream};
  const int64_t begin = kPlace.first + element - element % 16;
  const auto four = core::philox(core::hash64(words, sizeof words),
                                 static_cast<uint64_t>(kPlace.step), static_cast<uint64_t>(begin));
  const auto at = static_cast<std::size_t>(element % 16);
  return ((four[at / 4] >> (8 * (at % 4)) & 0xFF) + 0.5) / 256;
}

TEST(Compress, Int8RoundsByTheRandomNumberOfEachElement) {
  const auto int8 = compress::make_compressor({.kind = Kind::Int8});
  for_all_blocks([&](const at::Tensor& block) {
    const auto exact = values(block), got = values(decoded(*int8, block));
    const auto count = static_cast<int64_t>(exact.size());
    EXPECT_EQ(int8->encode(block, kPlace).numel(), count + 4 * ((count + 255) / 256));
    for (int64_t begin = 0; begin < count; begin += 256) {
      const int64_t end = std::min(begin + 256, count);
      double most = 0;
      for (int64_t i = begin; i < end; ++i)
        most = std::max(most, std::abs(exact[static_cast<std::size_t>(i)]));
      const double scale = std::max<double>(static_cast<float>(most) / 127.0F, 0x1p-126);
      for (int64_t i = begin; i < end; ++i) {
        const double ideal = exact[static_cast<std::size_t>(i)] / scale + random_of(i);
        const double code = got[static_cast<std::size_t>(i)] / scale;
        // Near a whole number, float32 may fall on its other side.
        const bool near = std::abs(ideal - std::rint(ideal)) < 1e-4;
        ASSERT_NEAR(code, std::rint(code), 1e-4) << i;
        ASSERT_NEAR(std::rint(code), std::floor(ideal), near ? 1 : 0) << i << ": " << ideal;
        ASSERT_LE(std::abs(code), 127.0001);
      }
    }
  });
}

/// A rounded value is off by less than a scale: the standard deviation is at most half of one. The
/// mean of M values deviates by sqrt(M) less, and its expectation by scale / 512 at most. Five
/// deviations are exceeded once in 1.7 million; the seeds are fixed.
TEST(Compress, Int8IsUnbiased) {
  const auto int8 = compress::make_compressor({.kind = Kind::Int8});
  constexpr int kSteps = 4'000;
  at::Tensor block = torch::linspace(-1, 1, 257);
  at::Tensor sum = torch::zeros({257}, at::kDouble);
  for (int step = 0; step < kSteps; ++step)
    sum += decoded(*int8, block, {.seed = 3, .stream = 4, .step = step});
  const double scale = 1 / 127.0, bound = 5 * scale / 2 / std::sqrt(kSteps) + scale / 512;
  const at::Tensor error = (sum / kSteps - block).slice(0, 0, 256);
  EXPECT_LE(error.abs().max().item<double>(), bound);
  const double bound_of_all = 5 * scale / 2 / std::sqrt(kSteps * 256.0) + scale / 512;
  EXPECT_LE(std::abs(error.mean().item<double>()), bound_of_all);
  EXPECT_EQ(decoded(*int8, block)[256].item<float>(), 1.0F) << "a block of one: its largest, 127";
}

TEST(Compress, Int8OfAnotherPlaceRoundsOtherwise) {
  const auto int8 = compress::make_compressor({.kind = Kind::Int8});
  const at::Tensor block = torch::linspace(-1, 1, 256);
  const auto bytes = [&](const BlockPlace& place) { return int8->encode(block, place); };
  const BlockPlace here = {.seed = 1, .stream = 2, .step = 3, .first = 4096};
  EXPECT_TRUE(same_bits(bytes(here), bytes(here)));
  for (const BlockPlace& other : {BlockPlace{2, 2, 3, 4096}, BlockPlace{1, 3, 3, 4096},
                                  BlockPlace{1, 2, 4, 4096}, BlockPlace{1, 2, 3, 8192}})
    EXPECT_FALSE(same_bits(bytes(here), bytes(other)));
}

TEST(Compress, OneBitSaysTheMeansOfBothSigns) {
  const auto onebit = compress::make_compressor({.kind = Kind::OneBit});
  for_all_blocks([&](const at::Tensor& block) {
    const auto exact = values(block), got = values(decoded(*onebit, block));
    const auto count = static_cast<int64_t>(exact.size());
    EXPECT_EQ(
        onebit->encode(block, kPlace).numel(),
        (count + 7) / 8 + 2 * static_cast<int64_t>(block.element_size()) * ((count + 4095) / 4096));
    // 4096 additions in 32 sums: each of the 128 may be off by half of the last place.
    const double relative = block.scalar_type() == at::kFloat ? 135 * 0x1p-24 : 4096 * 0x1p-53;
    for (std::size_t begin = 0; begin < exact.size(); begin += 4096) {
      const std::size_t end = std::min(begin + 4096, exact.size());
      double sums[2] = {}, counts[2] = {};
      for (std::size_t i = begin; i < end; ++i) {
        sums[exact[i] < 0] += exact[i];
        counts[exact[i] < 0] += 1;
      }
      for (std::size_t i = begin; i < end; ++i) {
        const double mean = sums[exact[i] < 0] / counts[exact[i] < 0];
        ASSERT_NEAR(got[i], mean, relative * std::abs(mean)) << i;
      }
    }
  });
}

TEST(Compress, TopKSendsTheLargestAndOfEqualOnesTheFirst) {
  for (const double ratio : {0.001, 0.01, 0.07, 0.5, 1.0}) {
    const auto topk = compress::make_compressor({.kind = Kind::TopK, .ratio = ratio});
    for_all_blocks([&](const at::Tensor& block) {
      for (const bool many_are_equal : {false, true}) {
        const at::Tensor x = many_are_equal ? torch::round(block) : block;
        const auto exact = values(x), got = values(decoded(*topk, x));
        const auto k =
            static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(exact.size()) - 1e-9));
        EXPECT_EQ(topk->encode(x, kPlace).numel(),
                  static_cast<int64_t>(k * (4 + x.element_size())));
        std::vector<std::size_t> order(exact.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return std::abs(exact[a]) > std::abs(exact[b]);
        });
        std::vector<double> expected(exact.size());
        for (std::size_t n = 0; n < k; ++n) expected[order[n]] = exact[order[n]];
        ASSERT_EQ(got, expected) << ratio;
      }
    });
  }
}

/// 16 of every 1024 elements are unlike the others, and just these are what topk samples.
TEST(Compress, TopKIsRightWhereItsSampleIsWrong) {
  constexpr int64_t kCount = 1 << 17;
  const auto topk = compress::make_compressor({.kind = Kind::TopK, .ratio = 0.05});
  for (const float unlike : {0.0F, 1e6F, NAN}) {
    at::Tensor block = torch::randn({kCount}) + 100;
    at::Tensor sampled = block.view({kCount / 1024, 1024}).narrow(1, 0, 16);
    sampled.fill_(unlike);
    const at::Tensor out = decoded(*topk, block);
    const int64_t k = (kCount + 19) / 20;
    const at::Tensor order = torch::argsort(block.abs().nan_to_num(1e9), /*stable=*/true, 0, true);
    at::Tensor expected = torch::zeros_like(block);
    const at::Tensor largest = order.slice(0, 0, k);
    expected.index_put_({largest}, block.index({largest}));
    EXPECT_TRUE(torch::allclose(out, expected, 0, 0, /*equal_nan=*/true)) << unlike;
  }
}

TEST(Compress, EveryCpuGivesTheSameBits) {
  for (const Kind kind : kKinds) {
    for (const int64_t size : kSizes) {
      const at::Tensor block = numbers(size, at::kFloat);
      const at::Tensor before = numbers(size, at::kFloat).roll(1);
      std::optional<std::array<at::Tensor, 4>> first;
      for (const std::string& cpu : cpus()) {
        const auto compressor = compress::make_compressor({.kind = kind, .cpu = cpu});
        const at::Tensor residual = before.clone();
        std::array<at::Tensor, 4> all = {
            compressor->encode(block, kPlace), decoded(*compressor, block),
            compressor->encode_with_feedback(block, residual, kPlace), residual};
        if (!first) first = all;
        for (std::size_t i = 0; i < all.size(); ++i)
          EXPECT_TRUE(same_bits(all[i], (*first)[i]))
              << compressor->name() << " of " << size << " on " << cpu << ", tensor " << i;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
