// CPUs with AVX2 and F16C.
#include "trireme/comm/vectors_avx2.h"
// After it: the kernels are made of its vectors.
#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

inline uint32_t lane_bits(Ints lanes) {
  return static_cast<uint32_t>(_mm256_movemask_ps(bits_as<__m256>(lanes)));
}

inline Ints load_bytes(const char* from) {
  return bits_as<Ints>(
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(load<uint64_t>(from)))));
}

/// Packing works in each 128 bits for itself; the last step puts the groups of four in order.
inline Register pack_bytes(Ints a, Ints b, Ints c, Ints d) {
  const __m256i low = _mm256_packs_epi32(bits_as<__m256i>(a), bits_as<__m256i>(b));
  const __m256i high = _mm256_packs_epi32(bits_as<__m256i>(c), bits_as<__m256i>(d));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return bits_as<Register>(_mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
}

inline Words multiply_low(Words a, Words b) {
  return bits_as<Words>(_mm256_mul_epu32(bits_as<__m256i>(a), bits_as<__m256i>(b)));
}

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = kernels_called("avx2");

}  // namespace trireme::compress
