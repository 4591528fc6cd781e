// The kernels of the compressors give the same bits on every CPU, also on one that is not an
// x86-64: their results are compared with hashes that are written down here.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "trireme/compress/kernels.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"

namespace trireme::compress {
namespace {

constexpr int64_t kCount = 10'007;
constexpr auto kElems = static_cast<std::size_t>(kCount);

/// Multiples of 2^-32 with 24 bits, divided by powers of two: the same on every machine.
std::vector<float> numbers(uint64_t seed) {
  std::vector<float> all;
  for (uint64_t i = 0; i < kElems; ++i) {
    const auto four = core::philox(seed, 0, i);
    const float x = static_cast<float>(four[0] >> 8) - 0x1p23F;
    all.push_back(x / static_cast<float>(1U << four[1] % 32));
  }
  return all;
}

/// A hash of the bytes, of what is decoded and of the residual.
using Encode = std::function<void(const Source&, char*)>;
using Decode = std::function<void(const char*, float*)>;
uint64_t hash_of(std::size_t num_bytes, const Encode& encode, const Decode& decode) {
  const std::vector<float> block = numbers(1);
  std::vector<float> residual = numbers(2), said(kElems);
  std::vector<char> bytes(num_bytes);
  encode({block.data(), residual.data(), kCount}, bytes.data());
  decode(bytes.data(), said.data());
  const uint64_t all[] = {core::hash64(bytes.data(), bytes.size()),
                          core::hash64(residual.data(), kElems * sizeof(float)),
                          core::hash64(said.data(), kElems * sizeof(float))};
  return core::hash64(all, sizeof all);
}

TEST(CompressKernels, AreTheSameOnEveryMachine) {
  for (const Kernels* kernels : runnable_kernels()) {
    SCOPED_TRACE(kernels->name);
    EXPECT_EQ(
        hash_of(2 * kElems, kernels->encode_fp16,
                [&](const char* bytes, float* to) { kernels->decode_fp16(bytes, to, kCount); }),
        0xa41824264bc00bde);
    EXPECT_EQ(
        hash_of(2 * kElems, kernels->encode_bf16,
                [&](const char* bytes, float* to) { kernels->decode_bf16(bytes, to, kCount); }),
        0xee7450dc43023642);
    constexpr std::size_t kScales = 4 * ((kCount + kInt8Block - 1) / kInt8Block);
    EXPECT_EQ(hash_of(
                  kScales + kElems,
                  [&](const Source& source, char* bytes) {
                    kernels->encode_int8(source, {1, 2, 3}, bytes, bytes + kScales);
                  },
                  [&](const char* bytes, float* to) {
                    kernels->decode_int8(bytes, bytes + kScales, to, kCount);
                  }),
              0x939624a65749e343);
    constexpr std::size_t kMeans = 8 * ((kCount + kOneBitBlock - 1) / kOneBitBlock);
    EXPECT_EQ(hash_of(
                  kMeans + (kElems + 7) / 8,
                  [&](const Source& source, char* bytes) {
                    kernels->encode_onebit(source, bytes, bytes + kMeans);
                  },
                  [&](const char* bytes, float* to) {
                    kernels->decode_onebit(bytes, bytes + kMeans, to, kCount);
                  }),
              0x806593bc82ba486e);
  }
}

TEST(CompressKernels, FindMagnitudesByTheirBits) {
  const std::vector<float> block = numbers(3);
  for (const Kernels* kernels : runnable_kernels()) {
    SCOPED_TRACE(kernels->name);
    std::vector<uint32_t> bins(kMagnitudeBins), found(kElems), expected;
    std::vector<float> values(kElems);
    kernels->count_magnitudes(block.data(), kCount, bins.data());
    const float least = 1000;  // its bits: 0x447A0000
    for (std::size_t i = 0; i < kElems; ++i)
      if (block[i] >= least || block[i] <= -least) expected.push_back(static_cast<uint32_t>(i));
    found.resize(static_cast<std::size_t>(kernels->find_magnitudes(
        {block.data(), nullptr, kCount}, 0x447A0000, found.data(), values.data())));
    EXPECT_EQ(found, expected);
    for (std::size_t n = 0; n < found.size(); ++n) EXPECT_EQ(values[n], block[found[n]]);
    std::vector<uint32_t> counted(kMagnitudeBins);
    for (const float x : block) ++counted[(__builtin_bit_cast(uint32_t, x) << 1) >> 20];
    EXPECT_EQ(bins, counted);
  }
}

}  // namespace
}  // namespace trireme::compress
