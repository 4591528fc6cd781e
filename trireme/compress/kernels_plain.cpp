// CPUs other than x86-64: vectors of 16 bytes, and lane by lane what gcc's vectors have no word
// for.
#include "trireme/comm/vectors_base.h"
// After it: the kernels are made of its vectors.
#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

inline uint32_t lane_bits(Ints lanes) {
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (lanes[lane] != 0 ? 1U : 0U) << lane;
  return bits;
}

inline Ints load_bytes(const char* from) {
  Ints numbers{};
  for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = static_cast<unsigned char>(from[lane]);
  return numbers;
}

inline Register pack_bytes(Ints a, Ints b, Ints c, Ints d) {
  const Ints all[] = {a, b, c, d};
  Register bytes{};
  for (int i = 0; i < kVectorBytes; ++i) bytes[i] = static_cast<char>(all[i / kLanes][i % kLanes]);
  return bytes;
}

inline Words multiply_low(Words a, Words b) {
  return (a & kLower) * (b & kLower);
}

constexpr Kernels kBaseKernels = kernels_called("base");

}  // namespace

std::vector<const Kernels*> runnable_kernels() {
  return {&kBaseKernels};
}

}  // namespace trireme::compress
