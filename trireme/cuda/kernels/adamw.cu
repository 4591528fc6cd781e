// AdamW (Loshchilov and Hutter 2019) over many tensors by one launch:
//
//   g = gradient / divisor
//   m = beta1 m + (1 - beta1) g            v = beta2 v + (1 - beta2) g^2
//   p = p (1 - rate decay) - rate / (1 - beta1^t)  m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//
// TYPE is the type of the gradients. Masters p and moments m, v are float32. Where a tensor has a
// weight of its own, of type WEIGHT, the new master is rounded into it on the way. The learning
// rate, the divisor, whether to skip and the count t of every tensor are read from the device.
//
// A block has kElems elements of one tensor; `first_block` says where the blocks of each begin.

#define kElems 16384
#define kTensors 48

struct Segment {
  float* master;
  const T* gradient;
  float *average, *square;
  WEIGHT* weight;      // or null
  const float* count;  // of updates, this one included
  i64 elems;
  int first_block;
  int flags;  // 1: decays; 2: all addresses allow four elements at a time
};
struct Segments {
  Segment all[kTensors];
  int count;
};
struct Rates {
  float beta1, beta2, epsilon, decay;
};

struct Update {
  float step, root, keep, inverse;
  Rates r;
  __device__ float operator()(float p, float gradient, float& m, float& v) const {
    const float g = gradient * inverse;
    m = r.beta1 * m + (1.f - r.beta1) * g;
    v = r.beta2 * v + (1.f - r.beta2) * g * g;
    return p * keep - step * m / (sqrtf(v) * root + r.epsilon);
  }
};

extern "C" __global__ void __launch_bounds__(256)
    adamw(const __grid_constant__ Segments segments, Rates r, const double* rate,
          const double* divisor, const float* skip) {
  if (skip && *skip != 0.f) return;
  const Segment& s = segment_of(segments);
  __shared__ Update shared;
  if (threadIdx.x == 0) {
    const double t = *s.count;
    shared.r = r;
    shared.step = (float)(*rate / (1. - pow((double)r.beta1, t)));
    shared.root = (float)(1. / sqrt(1. - pow((double)r.beta2, t)));
    shared.keep = s.flags & 1 ? (float)(1. - *rate * r.decay) : 1.f;
    shared.inverse = (float)(1. / *divisor);
  }
  __syncthreads();
  const Update update = shared;
  const i64 begin = (blockIdx.x - s.first_block) * (i64)kElems;
  const i64 end = begin + kElems < s.elems ? begin + kElems : s.elems;
  i64 scalar = begin;
  if (s.flags & 2) {
    scalar = begin + (end - begin) / 4 * 4;
#pragma unroll 2
    for (i64 i = begin + threadIdx.x * 4; i < scalar; i += blockDim.x * 4) {
      float4 p = *(float4*)(s.master + i), m = *(float4*)(s.average + i),
             v = *(float4*)(s.square + i);
      const Pack<4> g = *(const Pack<4>*)(s.gradient + i);
      p.x = update(p.x, to_float(g.v[0]), m.x, v.x);
      p.y = update(p.y, to_float(g.v[1]), m.y, v.y);
      p.z = update(p.z, to_float(g.v[2]), m.z, v.z);
      p.w = update(p.w, to_float(g.v[3]), m.w, v.w);
      *(float4*)(s.master + i) = p;
      *(float4*)(s.average + i) = m;
      *(float4*)(s.square + i) = v;
      if (s.weight) {
        struct alignas(4 * sizeof(WEIGHT)) {
          WEIGHT v[4];
        } w;
        put(w.v[0], p.x);
        put(w.v[1], p.y);
        put(w.v[2], p.z);
        put(w.v[3], p.w);
        *(decltype(w)*)(s.weight + i) = w;
      }
    }
  }
  for (i64 i = scalar + threadIdx.x; i < end; i += blockDim.x) {
    float m = s.average[i], v = s.square[i];
    const float p = update(s.master[i], to_float(s.gradient[i]), m, v);
    s.master[i] = p;
    s.average[i] = m;
    s.square[i] = v;
    if (s.weight) put(s.weight[i], p);
  }
}
