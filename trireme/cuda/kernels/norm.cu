// Norms over rows of `width` elements. CENTRED is 1 for layer norm, y = (x - mean) rstd g + b, and 0
// for RMS norm, y = x rstd g, which has neither mean nor bias: its pointers are null. A warp computes
// a row and keeps it in registers:
//
//   lane        0        1           31       0
//   row   | V elems | V elems | ... | V elems | V elems | ...      K packs per lane
//
// V is 1 for odd widths, and PACKS is ceil(width / 32V). WIDTH is known to the compiler, so that
// no bound is checked where all lanes have as many packs.

constexpr int K = PACKS, width = WIDTH;
constexpr bool centred = CENTRED;

// Elements i of the normalized row, scaled.
__device__ inline float scaled(float h, T g, const Pack<V>& b, int i) {
  return centred ? h * to_float(g) + to_float(b.v[i]) : h * to_float(g);
}

extern "C" __global__ void norm_forward(const T* x, const T* g, const T* b, T* y, float* mean,
                                        float* rstd, i64 rows, float epsilon) {
  const int lane = threadIdx.x % 32;
  const i64 row = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const Pack<V>* from = (const Pack<V>*)(x + row * width);
  float v[K][V];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = k * 32 + lane;
    if (at * V >= width) break;
    const Pack<V> p = from[at];
#pragma unroll
    for (int i = 0; i < V; ++i) sum += v[k][i] = to_float(p.v[i]);
  }
  const float m = centred ? warp_sum(sum) / width : 0.f;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if ((k * 32 + lane) * V >= width) break;
#pragma unroll
    for (int i = 0; i < V; ++i) squares += (v[k][i] - m) * (v[k][i] - m);
  }
  const float r = rsqrtf(warp_sum(squares) / width + epsilon);
  if (lane == 0) {
    if (centred) mean[row] = m;
    rstd[row] = r;
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = k * 32 + lane;
    if (at * V >= width) break;
    const Pack<V> gg = ((const Pack<V>*)g)[at], bb = centred ? ((const Pack<V>*)b)[at] : gg;
    Pack<V> o;
#pragma unroll
    for (int i = 0; i < V; ++i) put(o.v[i], scaled((v[k][i] - m) * r, gg.v[i], bb, i));
    ((Pack<V>*)(y + row * width))[at] = o;
  }
}

// The same output again, from a row whose mean and rstd are known. It gives the bits of
// norm_forward.
extern "C" __global__ void norm_again(const T* x, const T* g, const T* b, T* y, const float* mean,
                                      const float* rstd, i64 rows) {
  const int lane = threadIdx.x % 32;
  const i64 row = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const float m = centred ? mean[row] : 0.f, r = rstd[row];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int at = k * 32 + lane;
    if (at * V >= width) break;
    const Pack<V> p = ((const Pack<V>*)(x + row * width))[at];
    const Pack<V> gg = ((const Pack<V>*)g)[at], bb = centred ? ((const Pack<V>*)b)[at] : gg;
    Pack<V> o;
#pragma unroll
    for (int i = 0; i < V; ++i) put(o.v[i], scaled((to_float(p.v[i]) - m) * r, gg.v[i], bb, i));
    ((Pack<V>*)(y + row * width))[at] = o;
  }
}

// dx = d + rstd (w - mean(w) - h mean(w h)), with h = (x - mean) rstd and w = dy g; RMS norm has no
// mean(w). `d` is the gradient that the residual stream brings along; it may be null.
//
// A block goes over many rows. It adds up dy h and dy for each column, and writes the two sums into
// a row of its own of `dg` and `db` [blocks, width], in float32. column_totals adds up the rows.
extern "C" __global__ void __launch_bounds__(256, K <= 3 ? 2 : 1)
    norm_backward(const T* dy, const T* x, const T* g, const float* mean, const float* rstd,
                  const T* d, T* dx, float* dg, float* db, i64 rows) {
  extern __shared__ float sums[];  // dg, then db if it is centred
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float ag[K][V] = {}, ab[K][V] = {};
  for (i64 row = blockIdx.x * (i64)warps + warp; row < rows; row += (i64)gridDim.x * warps) {
    const float m = centred ? mean[row] : 0.f, r = rstd[row];
    const Pack<V>*from = (const Pack<V>*)(x + row * width),
          *by = (const Pack<V>*)(dy + row * width),
          *also = (const Pack<V>*)(d + (d ? row * width : 0));
    Pack<V> p[K], q[K], e[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = k * 32 + lane;
      if (at * V >= width) break;
      p[k] = by[at];
      q[k] = from[at];
      if (d) e[k] = also[at];
    }
    float c1 = 0, c2 = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = k * 32 + lane;
      if (at * V >= width) break;
      const Pack<V> gg = ((const Pack<V>*)g)[at];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float t = to_float(p[k].v[i]), h = (to_float(q[k].v[i]) - m) * r;
        const float w = t * to_float(gg.v[i]);
        if (centred) c1 += w;
        c2 += w * h;
        ag[k][i] += t * h;
        if (centred) ab[k][i] += t;
      }
    }
    c1 = centred ? warp_sum(c1) / width : 0.f;
    c2 = warp_sum(c2) / width;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = k * 32 + lane;
      if (at * V >= width) break;
      const Pack<V> gg = ((const Pack<V>*)g)[at];
      Pack<V> o;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float h = (to_float(q[k].v[i]) - m) * r, w = to_float(p[k].v[i]) * to_float(gg.v[i]);
        put(o.v[i], (d ? to_float(e[k].v[i]) : 0.f) + r * (w - c1 - h * c2));
      }
      ((Pack<V>*)(dx + row * width))[at] = o;
    }
  }
  for (int i = threadIdx.x; i < (centred ? 2 : 1) * width; i += blockDim.x) sums[i] = 0;
  __syncthreads();
  for (int turn = 0; turn < warps; ++turn) {  // one after the other, so that the order is fixed
    if (turn == warp) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int at = k * 32 + lane;
        if (at * V >= width) break;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sums[at * V + i] += ag[k][i];
          if (centred) sums[width + at * V + i] += ab[k][i];
        }
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    dg[blockIdx.x * (i64)width + i] = sums[i];
    if (centred) db[blockIdx.x * (i64)width + i] = sums[width + i];
  }
}
