// GPT-2's GELU: 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).

struct Tanh {
  float value, slope;  // slope: 1 - tanh^2, without the loss of digits of that difference
};
__device__ inline Tanh tanh_of(float u) {  // exact to a few ulp, unlike tanh.approx
  const float e = __expf(-2.f * fabsf(u)), by = 1.f / (1.f + e);
  return {copysignf((1.f - e) * by, u), 4.f * e * by * by};
}

extern "C" __global__ void gelu_forward(const T* x, T* y, i64 packs) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < packs;
       at += (i64)gridDim.x * blockDim.x) {
    const Pack<V> p = ((const Pack<V>*)x)[at];
    Pack<V> o;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float a = to_float(p.v[i]);
      const float u = 0.7978845608028654f * (a + 0.044715f * a * a * a);
      put(o.v[i], 0.5f * a * (1.f + tanh_of(u).value));
    }
    ((Pack<V>*)y)[at] = o;
  }
}

// dx = dy gelu'(x)
extern "C" __global__ void gelu_backward(const T* dy, const T* x, T* dx, i64 packs) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < packs;
       at += (i64)gridDim.x * blockDim.x) {
    const Pack<V> p = ((const Pack<V>*)x)[at], q = ((const Pack<V>*)dy)[at];
    Pack<V> o;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float a = to_float(p.v[i]);
      const Tanh t = tanh_of(0.7978845608028654f * (a + 0.044715f * a * a * a));
      const float slope = 0.7978845608028654f * (1.f + 3 * 0.044715f * a * a);
      put(o.v[i], to_float(q.v[i]) * (0.5f * (1.f + t.value) + 0.5f * a * t.slope * slope));
    }
    ((Pack<V>*)dx)[at] = o;
  }
}
