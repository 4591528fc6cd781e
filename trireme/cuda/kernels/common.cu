// What all kernels share. It is put before every other text.
//
// A text is compiled for one element type, TYPE: bf16, f16 or float, and for PACK elements that one
// instruction moves. Numbers are loaded and stored in that type and computed in float32. No CUDA
// header is included: NVRTC needs none for this.

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
__device__ inline float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

__device__ inline void put(float& to, float x) {
  to = x;
}
__device__ inline void put(bf16& to, float x) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
__device__ inline void put(f16& to, float x) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}

typedef TYPE T;
constexpr int V = PACK;

// N elements that are loaded and stored by one instruction; 16 bytes where the addresses allow it.
template <int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};
#define WIDE (16 / (int)sizeof(T))

typedef long long i64;

// A launch over many tensors gives each of them consecutive blocks, from `first_block` on. Returns
// the one that this block belongs to: the last that begins here or before.
template <class Segments>
__device__ inline const auto& segment_of(const Segments& segments) {
  int low = 0, high = segments.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (segments.all[middle].first_block <= (int)blockIdx.x)
      low = middle;
    else
      high = middle - 1;
  }
  return segments.all[low];
}

__device__ inline float warp_sum(float x) {
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}

// The sum (or the largest) of what all threads of a block pass, in a fixed order. `room` has 33
// floats of shared memory.
__device__ inline float block_sum(float x, float* room) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  if (lane == 0) room[warp] = x;
  __syncthreads();
  if (warp == 0) {
    const float all = warp_sum(lane < warps ? room[lane] : 0.f);
    if (lane == 0) room[32] = all;
  }
  __syncthreads();
  x = room[32];
  __syncthreads();
  return x;
}
__device__ inline float block_max(float x, float* room) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  x = warp_max(x);
  if (lane == 0) room[warp] = x;
  __syncthreads();
  if (warp == 0) {
    const float all = warp_max(lane < warps ? room[lane] : -__int_as_float(0x7f800000));
    if (lane == 0) room[32] = all;
  }
  __syncthreads();
  x = room[32];
  __syncthreads();
  return x;
}
