// SwiGLU: h = silu(gate) up, with silu(a) = a / (1 + e^-a). A row of z is [gate | up], a row of h has
// half as many elements:
//
//   z   | gate, WIDTH elements | up, WIDTH elements |        a thread: V elements of each
//   h   | WIDTH elements       |

constexpr int width = WIDTH;

struct Silu {
  float value, slope;
};
__device__ inline Silu silu(float a) {
  const float s = 1.f / (1.f + __expf(-a));
  return {a * s, s * (1.f + a * (1.f - s))};
}

extern "C" __global__ void swiglu_forward(const T* z, T* h, i64 packs) {
  constexpr int row_packs = width / V;
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < packs;
       at += (i64)gridDim.x * blockDim.x) {
    const i64 row = at / row_packs, column = at % row_packs;
    const Pack<V>* from = (const Pack<V>*)z + row * 2 * row_packs + column;
    const Pack<V> gate = from[0], up = from[row_packs];
    Pack<V> o;
#pragma unroll
    for (int i = 0; i < V; ++i) put(o.v[i], silu(to_float(gate.v[i])).value * to_float(up.v[i]));
    ((Pack<V>*)h)[at] = o;
  }
}

// d gate = dh up silu'(gate), d up = dh silu(gate)
extern "C" __global__ void swiglu_backward(const T* dh, const T* z, T* dz, i64 packs) {
  constexpr int row_packs = width / V;
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < packs;
       at += (i64)gridDim.x * blockDim.x) {
    const i64 row = at / row_packs, column = at % row_packs;
    const i64 place = row * 2 * row_packs + column;
    const Pack<V> gate = ((const Pack<V>*)z)[place], up = ((const Pack<V>*)z)[place + row_packs];
    const Pack<V> by = ((const Pack<V>*)dh)[at];
    Pack<V> to_gate, to_up;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Silu s = silu(to_float(gate.v[i]));
      const float d = to_float(by.v[i]);
      put(to_gate.v[i], d * to_float(up.v[i]) * s.slope);
      put(to_up.v[i], d * s.value);
    }
    ((Pack<V>*)dz)[place] = to_gate;
    ((Pack<V>*)dz)[place + row_packs] = to_up;
  }
}
