#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::compress {

constexpr int64_t kInt8Block = 256;     ///< elements that share a scale
constexpr int64_t kOneBitBlock = 4096;  ///< elements that share two means

/// What is encoded: block[i], or, where there is a residual, residual[i] + block[i]. The residual
/// then becomes what the bytes do not say, and 0 where they say NaN or infinity.
struct Source {
  const float* block;
  float* residual;  ///< or null
  int64_t count;
};

/// Which random numbers: Philox of this key at (step, element).
struct RandomPlace {
  uint64_t key, step, element;
};

/// The inner loops of the compressors for float32 and one kind of CPU. All kinds give the same
/// bits. Bytes need no alignment.
struct Kernels {
  const char* name;  ///< "base", "avx2" or "avx512", as those of comm

  void (*encode_fp16)(const Source& source, char* halves);
  void (*decode_fp16)(const char* halves, float* block, int64_t count);
  void (*encode_bf16)(const Source& source, char* halves);
  void (*decode_bf16)(const char* halves, float* block, int64_t count);

  void (*encode_int8)(const Source& source, const RandomPlace& place, char* scales, char* codes);
  void (*decode_int8)(const char* scales, const char* codes, float* block, int64_t count);

  void (*encode_onebit)(const Source& source, char* means, char* bits);
  void (*decode_onebit)(const char* means, const char* bits, float* block, int64_t count);

  /// Adds to bins[b] how many magnitudes have the upper bits b (topk_body.h).
  void (*count_magnitudes)(const float* values, int64_t count, uint32_t* bins);
  /// Adds the block to the residual, if there is one. Finds the values whose magnitude has at least
  /// these bits: writes their indices, in order, and the values, and returns how many there are.
  int64_t (*find_magnitudes)(const Source& source, uint32_t least, uint32_t* indices,
                             float* values);
};

constexpr int kMagnitudeShift = 19;  ///< a bin has the exponent and 4 bits of the mantissa
constexpr int kMagnitudeBins = 1 << (31 - kMagnitudeShift);

/// The kernels that this CPU can run. CMake picks the file: kernels_x86.cpp or kernels_plain.cpp.
std::vector<const Kernels*> runnable_kernels();

/// Those of that name; empty: those that comm uses. Throws ConfigError if the CPU cannot run them.
const Kernels& kernels_named(std::string_view name);

}  // namespace trireme::compress
