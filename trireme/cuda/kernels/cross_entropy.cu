// Cross-entropy of rows of logits, in nats, which become their own gradients:
//
//   loss = log(sum exp(z)) - z[target]        z = (softmax(z) - onehot(target)) scale
//
// A block computes a row, in two passes: largest and sum, then the gradient. With KEEP the row
// stays in shared memory between them, so that it is read from device memory once; without, a row
// is too long for that, and is read twice.
//
// A target of `ignored` gives loss 0 and a gradient of zeros. One that is no class gives nan, which
// a training run notices. `scale` is one number on the device, or null for 1.

extern "C" __global__ void cross_entropy(T* z, const i64* targets, float* losses,
                                         const float* scale, i64 width, i64 ignored, int gradient) {
  extern __shared__ uint4 kept_memory[];
  __shared__ float room[33];
  T* row = z + blockIdx.x * width;
  const i64 target = targets[blockIdx.x], packs = width / V;
  const float infinity = __int_as_float(0x7f800000);
  const bool counts = target != ignored, known = target >= 0 && target < width;
  if (!counts || !known) {
    const float value = counts ? __int_as_float(0x7fffffff) : 0.f;
    if (threadIdx.x == 0) losses[blockIdx.x] = value;
    if (!gradient) return;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) put(row[i], value);
    return;
  }
  const float chosen = to_float(row[target]);  // read before anyone writes
#if KEEP
  Pack<V>* kept = (Pack<V>*)kept_memory;
#else
  Pack<V>* kept = (Pack<V>*)row;
#endif

  // One pass for both: a thread's sum is relative to the largest value that it has seen, and is
  // scaled down when a larger one comes.
  const float log2_e = 1.4426950408889634f;
  float own_top = -infinity, own_sum = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<V> p = ((const Pack<V>*)row)[i];
#if KEEP
    kept[i] = p;
#endif
    float here = to_float(p.v[0]);
#pragma unroll
    for (int k = 1; k < V; ++k) here = fmaxf(here, to_float(p.v[k]));
    if (here > own_top) {
      own_sum *= exp2f((own_top - here) * log2_e);
      own_top = here;
    }
    const float shift = own_top == -infinity ? 0.f : own_top * log2_e;
#pragma unroll
    for (int k = 0; k < V; ++k) own_sum += exp2f(fmaf(to_float(p.v[k]), log2_e, -shift));
  }
  const float top = block_max(own_top, room), shift = top * log2_e;
  const float sum =
      block_sum(own_top == -infinity ? own_sum : own_sum * exp2f((own_top - top) * log2_e), room);
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + (top - chosen);
  if (!gradient) return;

  const float by = scale ? *scale : 1.f, factor = by / sum;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<V> p = kept[i];
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float chance = exp2f(fmaf(to_float(p.v[k]), log2_e, -shift)) * factor;
      put(p.v[k], i * V + k == target ? chance - by : chance);
    }
    ((Pack<V>*)row)[i] = p;
  }
}
