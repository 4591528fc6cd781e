// CPUs with AVX-512 F, BW, VL and DQ.
#include "trireme/comm/vectors_avx512.h"
// After it: the kernels are made of its vectors.
#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

constexpr __mmask16 kEveryLane = 0xFFFF;  // gcc 12 warns about its own unmasked forms

inline uint32_t lane_bits(Ints lanes) {
  return _mm512_movepi32_mask(bits_as<__m512i>(lanes));
}

inline Ints load_bytes(const char* from) {
  return bits_as<Ints>(
      _mm512_maskz_cvtepu8_epi32(kEveryLane, bits_as<__m128i>(load<Vec<char, 16>>(from))));
}

/// Packing works in each 128 bits for itself; the last step puts the groups of four in order.
inline Register pack_bytes(Ints a, Ints b, Ints c, Ints d) {
  const __m512i low = _mm512_packs_epi32(bits_as<__m512i>(a), bits_as<__m512i>(b));
  const __m512i high = _mm512_packs_epi32(bits_as<__m512i>(c), bits_as<__m512i>(d));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return bits_as<Register>(
      _mm512_maskz_permutexvar_epi32(kEveryLane, order, _mm512_packus_epi16(low, high)));
}

inline Words multiply_low(Words a, Words b) {
  return bits_as<Words>(_mm512_maskz_mul_epu32(0xFF, bits_as<__m512i>(a), bits_as<__m512i>(b)));
}

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = kernels_called("avx512");

}  // namespace trireme::compress
