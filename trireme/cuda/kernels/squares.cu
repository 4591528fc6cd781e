// The sum of the squares of all elements of many tensors, for the norm of gradients: one pass, in a
// fixed order.
//
//   square_parts   block b adds up the squares of its kElems elements into parts[b]
//   square_total   adds up the parts
//
// A tensor that does not count gives 0, or nan if an element is not finite.

#define kElems 32768
#define kTensors 96

struct SquareSegment {
  const T* x;
  i64 elems;
  int first_block;
  int flags;  // 1: counts; 2: its address allows V elements at a time
};
struct SquareSegments {
  SquareSegment all[kTensors];
  int count;
};

extern "C" __global__ void __launch_bounds__(256)
    square_parts(const __grid_constant__ SquareSegments segments, double* parts) {
  __shared__ double room[8];
  const SquareSegment& s = segment_of(segments);
  const i64 begin = (blockIdx.x - s.first_block) * (i64)kElems;
  const i64 end = begin + kElems < s.elems ? begin + kElems : s.elems;
  float sum = 0;
  i64 scalar = begin;
  if (s.flags & 2) {
    scalar = begin + (end - begin) / V * V;
#pragma unroll 4
    for (i64 i = begin + threadIdx.x * V; i < scalar; i += blockDim.x * V) {
      const Pack<V> p = *(const Pack<V>*)(s.x + i);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += to_float(p.v[k]) * to_float(p.v[k]);
    }
  }
  for (i64 i = scalar + threadIdx.x; i < end; i += blockDim.x)
    sum += to_float(s.x[i]) * to_float(s.x[i]);
  double all = sum;
  for (int o = 16; o > 0; o >>= 1) all += __shfl_xor_sync(~0u, all, o);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = all;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int warp = 0; warp < 8; ++warp) total += room[warp];
  parts[blockIdx.x] = s.flags & 1 ? total : total - total;
}

extern "C" __global__ void __launch_bounds__(1024)
    square_total(const double* parts, double* total, int count) {
  __shared__ double room[32];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += 1024) sum += parts[i];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double all = 0;
  for (int warp = 0; warp < 32; ++warp) all += room[warp];
  *total = all;
}
