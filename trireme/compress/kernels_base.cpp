// Any x86-64: SSE2, and halves converted by hand.
#include <immintrin.h>

#include "trireme/comm/vectors_base.h"
// After it: the kernels are made of its vectors.
#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

inline uint32_t lane_bits(Ints lanes) {
  return static_cast<uint32_t>(_mm_movemask_ps(bits_as<__m128>(lanes)));
}

inline Ints load_bytes(const char* from) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i bytes = _mm_cvtsi32_si128(load<int32_t>(from));
  return bits_as<Ints>(_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero));
}

inline Register pack_bytes(Ints a, Ints b, Ints c, Ints d) {
  const __m128i low = _mm_packs_epi32(bits_as<__m128i>(a), bits_as<__m128i>(b));
  const __m128i high = _mm_packs_epi32(bits_as<__m128i>(c), bits_as<__m128i>(d));
  return bits_as<Register>(_mm_packus_epi16(low, high));
}

inline Words multiply_low(Words a, Words b) {
  return bits_as<Words>(_mm_mul_epu32(bits_as<__m128i>(a), bits_as<__m128i>(b)));
}

}  // namespace

extern const Kernels kBaseKernels;
const Kernels kBaseKernels = kernels_called("base");

}  // namespace trireme::compress
