// Rotary positions: a pair (a, b) of a head's elements at position t becomes
//
//   (a cos - b sin, b cos + a sin)        cos, sin: of row t of two tables [positions, D / 2]
//
// A head has HEAD = D elements. Its pairs are x[i] with x[i + D / 2] (NEIGHBOURS 0), or x[2 i] with
// x[2 i + 1] (NEIGHBOURS 1). The gradient is turned back: by the negative angle.
//
//   a row    | Q_HEADS heads of q | KV_HEADS of k | KV_HEADS of v |       a thread: V pairs of a head

constexpr int half_head = HEAD / 2, turned_heads = Q_HEADS + KV_HEADS, heads = turned_heads + KV_HEADS;

// V pairs of a head: 2 V elements, which lie in memory as two packs.
struct Pairs {
  Pack<V> p, q;
};
__device__ inline T& element(Pairs& x, int i) {
  return i < V ? x.p.v[i] : x.q.v[i - V];
}
// Where the two packs of the pairs from `pair` on begin in a head.
__device__ inline int first_pack(int pair) {
  return NEIGHBOURS ? 2 * pair : pair;
}
__device__ inline int second_pack(int pair) {
  return NEIGHBOURS ? 2 * pair + V : pair + half_head;
}
__device__ inline Pairs load(const T* head, int pair) {
  return {*(const Pack<V>*)(head + first_pack(pair)), *(const Pack<V>*)(head + second_pack(pair))};
}
__device__ inline void store(T* head, int pair, const Pairs& x) {
  *(Pack<V>*)(head + first_pack(pair)) = x.p;
  *(Pack<V>*)(head + second_pack(pair)) = x.q;
}
__device__ inline void turn(Pairs& x, const float* cosines, const float* sines, float sign) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    T& first = element(x, NEIGHBOURS ? 2 * i : i);
    T& second = element(x, NEIGHBOURS ? 2 * i + 1 : i + V);
    const float a = to_float(first), b = to_float(second), c = cosines[i], s = sign * sines[i];
    put(first, a * c - b * s);
    put(second, b * c + a * s);
  }
}

// Turns q and k of every row in place. `positions` rows make a sample.
extern "C" __global__ void rotate_heads(T* qkv, const float* cosines, const float* sines, i64 rows,
                                        i64 positions) {
  constexpr int packs = half_head / V;  // of a head
  const i64 all = rows * turned_heads * packs;
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < all;
       at += (i64)gridDim.x * blockDim.x) {
    const int pair = (int)(at % packs) * V, head = (int)(at / packs % turned_heads);
    const i64 row = at / packs / turned_heads, angle = row % positions * half_head + pair;
    T* place = qkv + (row * heads + head) * HEAD;
    Pairs x = load(place, pair);
    turn(x, cosines + angle, sines + angle, 1.f);
    store(place, pair, x);
  }
}

// The elements from one sample, head or position to the next.
struct Strides {
  i64 sample, head, position;
};

// The gradient of a row from those of its heads: q and k are turned back, v is copied.
extern "C" __global__ void join_gradients(const T* dq, const T* dk, const T* dv, T* out,
                                          const float* cosines, const float* sines, i64 rows,
                                          i64 positions, Strides q, Strides k, Strides v) {
  constexpr int packs = half_head / V;
  const i64 all = rows * heads * packs;
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < all;
       at += (i64)gridDim.x * blockDim.x) {
    const int pair = (int)(at % packs) * V, head = (int)(at / packs % heads);
    const i64 row = at / packs / heads, sample = row / positions, position = row % positions;
    const bool is_q = head < Q_HEADS, is_k = !is_q && head < turned_heads;
    const Strides& by = is_q ? q : is_k ? k : v;
    const int own = is_q ? head : is_k ? head - Q_HEADS : head - turned_heads;
    const T* from = (is_q ? dq : is_k ? dk : dv) + sample * by.sample + own * by.head +
                    position * by.position;
    Pairs x = load(from, pair);
    const i64 angle = position * half_head + pair;
    if (is_q || is_k) turn(x, cosines + angle, sines + angle, -1.f);
    store(out + (row * heads + head) * HEAD, pair, x);
  }
}
