// Sums of the columns of [rows, width], in float32 and in a fixed order, by two kernels:
//
//   column_parts    slice s adds up rows s, s + slices, ... into parts[s]
//   column_totals   adds up the slices and rounds once

// A block has 32 x 8 threads. Each thread has V neighbouring columns, and the eight rows of threads
// take turns over the rows of the slice.
extern "C" __global__ void column_parts(const T* x, float* parts, i64 rows, int width) {
  __shared__ float room[8][32 * V + 1];
  const int column = (blockIdx.x * 32 + threadIdx.x) * V;
  float sum[V] = {};
  if (column < width) {
    for (i64 row = blockIdx.y * 8 + threadIdx.y; row < rows; row += gridDim.y * 8) {
      const Pack<V> p = *(const Pack<V>*)(x + row * width + column);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += to_float(p.v[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) room[threadIdx.y][threadIdx.x * V + i] = sum[i];
  __syncthreads();
  for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * V; i += 256) {
    const int to = blockIdx.x * 32 * V + i;
    if (to >= width) continue;
    float total = 0;
    for (int turn = 0; turn < 8; ++turn) total += room[turn][i];
    parts[blockIdx.y * (i64)width + to] = total;
  }
}

// A block has 32 x 8 threads: a thread adds up every eighth slice of its column.
extern "C" __global__ void column_totals(const float* parts, T* to, int slices, int width) {
  __shared__ float room[8][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (column < width)
    for (int s = threadIdx.y; s < slices; s += 8) sum += parts[s * (i64)width + column];
  room[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  float total = 0;
  for (int turn = 0; turn < 8; ++turn) total += room[turn][threadIdx.x];
  put(to[column], total);
}
